package pawl

import (
	"context"
	"database/sql"
)

// sqlConn adapts *sql.Tx.
type sqlConn struct{ tx *sql.Tx }

// SQLConn adapts a transaction of database/sql.
func SQLConn(tx *sql.Tx) Conn { return sqlConn{tx} }

func (c sqlConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := c.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (c sqlConn) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	return c.tx.QueryContext(ctx, query, args...)
}
