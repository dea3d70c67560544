package postgres

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/sqlstore"
)

// native is a transaction of database/sql whose queries go past it, to the driver. A query is read to its end while
// database/sql cannot use the connection.
type native struct {
	pawl.Conn
	conn *sql.Conn // that the transaction is on
}

// Each is sqlstore.Eacher.
func (n native) Each(ctx context.Context, query string, args []any, row func(pawl.Rows) error) error {
	return n.conn.Raw(func(driverConn any) error {
		c, err := pgxConn(driverConn)
		if err != nil {
			return err
		}
		if c.PgConn().TxStatus() == 'I' { // it has been rolled back: nothing may be written outside of it
			return sql.ErrTxDone
		}
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := row(pgxRows{rows}); err != nil {
				return err
			}
		}
		rows.Close()
		return rows.Err()
	})
}

// pgxRows are rows that are scanned without the many steps that pgx takes for any type there may be. Close has an error, which pgx
// keeps for Err.
type pgxRows struct{ pgx.Rows }

func (r pgxRows) Close() error {
	r.Rows.Close()
	return r.Err()
}

// Scan is that of pgx, with the same results.
func (r pgxRows) Scan(dest ...any) error {
	values, fields := r.RawValues(), r.FieldDescriptions()
	if len(dest) != len(values) {
		return fmt.Errorf("%d columns are scanned into %d fields", len(values), len(dest))
	}
	for i, to := range dest {
		if put(&fields[i], values[i], to) {
			continue
		}
		if err := r.Conn().TypeMap().Scan(fields[i].DataTypeOID, fields[i].Format, values[i], to); err != nil {
			return fmt.Errorf("column %s: %w", fields[i].Name, err)
		}
	}
	return nil
}

// put puts a value where it belongs. False if it is of a kind that is left to pgx.
func put(f *pgconn.FieldDescription, value []byte, to any) bool {
	zero, ok := to.(sqlstore.OrZero)
	if ok {
		to = zero.Place()
	}
	into := reflect.ValueOf(to)
	if into.Kind() != reflect.Pointer {
		return putInto(f, value, to)
	}
	into = into.Elem()
	if value == nil {
		if ok {
			into.SetZero()
		}
		return ok
	}
	if f.Format != pgx.BinaryFormatCode && f.DataTypeOID != pgtype.TextOID {
		return false
	}
	as := puts[f.DataTypeOID]
	return as != nil && as(into, value)
}

// putInto is put for what is no pointer.
func putInto(f *pgconn.FieldDescription, value []byte, to any) bool {
	switch to := to.(type) {
	case sqlstore.TextScanner:
		return f.DataTypeOID == pgtype.TextOID && value != nil && to.ScanText(value) == nil // else pgx says what is wrong
	case sqlstore.NumberScanner:
		switch {
		case value == nil:
			to.ScanNumber(0)
		case f.DataTypeOID == pgtype.Int8OID && f.Format == pgx.BinaryFormatCode && len(value) == 8:
			to.ScanNumber(int64(binary.BigEndian.Uint64(value)))
		default:
			return false
		}
		return true
	case sql.Scanner:
		return value == nil && to.Scan(nil) == nil
	}
	return false
}

// puts are what puts the values of a type into fields of a fitting kind. A text that is as in the row before is not made again.
var puts = map[uint32]func(into reflect.Value, value []byte) bool{
	pgtype.TextOID: func(into reflect.Value, value []byte) bool {
		ok := into.Kind() == reflect.String
		if ok && into.String() != string(value) {
			into.SetString(string(value))
		}
		return ok
	},
	pgtype.UUIDOID: func(into reflect.Value, value []byte) bool {
		ok := into.Kind() == reflect.String && len(value) == 16
		if ok {
			var text [36]byte
			spell(&text, value)
			if into.String() != string(text[:]) {
				into.SetString(string(text[:]))
			}
		}
		return ok
	},
	pgtype.Int8OID: func(into reflect.Value, value []byte) bool {
		ok := into.CanInt() && into.Type().Size() == 8 && len(value) == 8
		if ok {
			into.SetInt(int64(binary.BigEndian.Uint64(value)))
		}
		return ok
	},
	pgtype.Int4OID: func(into reflect.Value, value []byte) bool {
		ok := into.CanInt() && into.Type().Size() >= 4 && len(value) == 4
		if ok {
			into.SetInt(int64(int32(binary.BigEndian.Uint32(value))))
		}
		return ok
	},
	pgtype.BoolOID: func(into reflect.Value, value []byte) bool {
		ok := into.Kind() == reflect.Bool && len(value) == 1
		if ok {
			into.SetBool(value[0] == 1)
		}
		return ok
	},
	pgtype.ByteaOID: func(into reflect.Value, value []byte) bool {
		ok := into.Type() == bytesType
		if ok {
			into.SetBytes(bytes.Clone(value))
		}
		return ok
	},
}

var bytesType = reflect.TypeFor[[]byte]()

// spell writes a UUID as text.
func spell(to *[36]byte, id []byte) {
	at := 0
	for i, part := range [][2]int{{0, 4}, {4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		if i > 0 {
			to[at] = '-'
			at++
		}
		at += hex.Encode(to[at:], id[part[0]:part[1]])
	}
}
