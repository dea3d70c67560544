package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pawlrun/pawl/internal/sqlstore"
)

// exchange is one round trip: statements that are sent as a whole, and their answers. It speaks the protocol itself, because
// parameters are in its form already, and the messages can be made in room that is used again.
type exchange struct {
	statements []sqlstore.Batch
	from       int  // the statement that first is of
	sets       bool // it has settings of the transaction among them

	first  string // the first value that the statement gave
	status byte   // of the connection after it, as in ReadyForQuery; 0 if that was not reached
}

// exchange is that of a batch. A statement that is alone commits by itself, where the connection has all that a transaction would
// have to set.
func (d *defaults) exchange(statements []sqlstore.Batch) *exchange {
	set := d.settings(d.hot.Load())
	if len(statements) == 1 && set == "" {
		return &exchange{statements: statements}
	}
	all := append(make([]sqlstore.Batch, 0, len(statements)+3), sqlstore.Batch{Text: begin})
	if set != "" {
		all = append(all, sqlstore.Batch{Text: set})
	}
	from := len(all)
	return &exchange{statements: append(append(all, statements...), sqlstore.Batch{Text: commit}), from: from, sets: set != ""}
}

// preparedKey is where a connection has the texts of its prepared statements.
const preparedKey = "pawl.prepared"

// prepare prepares what is not, if the connection may keep statements.
func (x *exchange) prepare(ctx context.Context, c *pgx.Conn, d *defaults) error {
	if !keeps(c) {
		return nil
	}
	known, ok := c.PgConn().CustomData()[preparedKey].(map[string]bool)
	if !ok {
		known = make(map[string]bool)
		c.PgConn().CustomData()[preparedKey] = known
	}
	for _, s := range x.statements {
		if known[s.Text] {
			continue
		}
		if _, err := c.Prepare(ctx, d.nameOf(s.Text), s.Text); err != nil {
			return err
		}
		known[s.Text] = true
	}
	return nil
}

// prepared reports whether all statements are.
func (x *exchange) prepared(c *pgx.Conn) bool {
	known, _ := c.PgConn().CustomData()[preparedKey].(map[string]bool)
	for _, s := range x.statements {
		if !known[s.Text] {
			return false
		}
	}
	return true
}

// messages has room for what is sent.
var messages = sync.Pool{New: func() any { return new([]byte) }}

const keptMessages = 256 << 10

// atOnce is what a socket takes while the server does not read.
const atOnce = 32 << 10

// write sends the statements, which prepare has seen. If they are many it returns before they are sent, and written gives what came
// of it: whoever only wrote would wait for a server that waits for its answers to be read.
func (x *exchange) write(c *pgx.Conn, d *defaults) (written chan error, err error) {
	room := messages.Get().(*[]byte)
	buf, err := x.encode((*room)[:0], keeps(c), d)
	if err != nil {
		return nil, unsent{err}
	}
	send := func() error {
		n, err := c.PgConn().Conn().Write(buf)
		if err != nil {
			err = fmt.Errorf("send %d bytes: %w", len(buf), err)
			if n == 0 {
				err = unsent{err}
			}
		}
		if cap(buf) <= keptMessages {
			*room = buf
			messages.Put(room)
		}
		return err
	}
	if len(buf) <= atOnce {
		return nil, send()
	}
	written = make(chan error, 1)
	go func() { written <- send() }()
	return written, nil
}

var inBinary = []int16{pgx.BinaryFormatCode} // for all parameters

// encode appends the messages.
func (x *exchange) encode(to []byte, prepared bool, d *defaults) (_ []byte, err error) {
	for _, s := range x.statements {
		name := ""
		if prepared {
			name = d.nameOf(s.Text)
		} else if to, err = (&pgproto3.Parse{Query: s.Text}).Encode(to); err != nil {
			return nil, err
		}
		if to, err = (&pgproto3.Bind{PreparedStatement: name, ParameterFormatCodes: inBinary, Parameters: s.Args}).Encode(to); err != nil {
			return nil, err
		}
		if to, err = (&pgproto3.Execute{}).Encode(to); err != nil {
			return nil, err
		}
	}
	return (&pgproto3.Sync{}).Encode(to)
}

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
