package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pawlrun/pawl/internal/sqlstore"
)

// exchange is one round trip: statements that are sent as a whole, and their answers. It speaks the protocol itself, because
// parameters are in its form already and the messages can be made in room that is used again.
type exchange struct {
	statements []sqlstore.Batch
	from       int    // the statement that first is of
	first      string // the first value that it gave

	status byte // of the connection after it, as in ReadyForQuery; 0 if that was not reached
}

// messages has room for what is sent.
var messages = sync.Pool{New: func() any { return new([]byte) }}

const keptMessages = 256 << 10

// run sends and reads. The connection is broken off if ctx ends, and then or if it fails cannot be used any more.
func (x *exchange) run(ctx context.Context, c *pgx.Conn, d *defaults) error {
	room := messages.Get().(*[]byte)
	defer messages.Put(room)
	buf, err := x.encode(ctx, (*room)[:0], c, d)
	if err != nil {
		return err
	}
	conn := c.PgConn().Conn()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	if _, err = conn.Write(buf); err == nil {
		err = x.answers(c.PgConn().Frontend())
	}
	if *room = buf; cap(buf) > keptMessages {
		*room = nil
	}
	switch {
	case !stop() || x.status == 0:
		_ = conn.Close() // its end of the transaction, if that is still open, is undone
		return errors.Join(err, context.Cause(ctx), driver.ErrBadConn)
	case x.status != 'I':
		return errors.Join(err, errOpen)
	}
	return err
}

// encode appends the messages. Statements are prepared once, unless the connection must not keep any.
func (x *exchange) encode(ctx context.Context, to []byte, c *pgx.Conn, d *defaults) (_ []byte, err error) {
	keeps := keeps(c)
	for _, s := range x.statements {
		name := ""
		if keeps {
			name = d.nameOf(s.Text)
			if _, err = c.Prepare(ctx, name, s.Text); err != nil {
				return nil, err
			}
		} else if to, err = (&pgproto3.Parse{Query: s.Text}).Encode(to); err != nil {
			return nil, err
		}
		if to, err = (&pgproto3.Bind{PreparedStatement: name, ParameterFormatCodes: binary, Parameters: s.Args}).Encode(to); err != nil {
			return nil, err
		}
		if to, err = (&pgproto3.Execute{}).Encode(to); err != nil {
			return nil, err
		}
	}
	return (&pgproto3.Sync{}).Encode(to)
}

var binary = []int16{pgx.BinaryFormatCode} // for all parameters

// answers reads up to the server's word that it is ready.
func (x *exchange) answers(from *pgproto3.Frontend) (err error) {
	for done := 0; ; {
		message, lost := from.Receive()
		if lost != nil {
			if err == nil {
				err = fmt.Errorf("the server's answer: %w", lost)
			}
			return err
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			if done == x.from && x.first == "" && len(m.Values) > 0 {
				x.first = string(m.Values[0])
			}
		case *pgproto3.CommandComplete:
			done++
		case *pgproto3.ErrorResponse:
			if err == nil {
				err = pgconn.ErrorResponseToPgError(m)
			}
		case *pgproto3.ReadyForQuery:
			x.status = m.TxStatus
			if err == nil && done < len(x.statements) {
				err = fmt.Errorf("%d statements have %d answers", len(x.statements), done)
			}
			return err
		}
	}
}
