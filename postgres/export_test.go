package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl"
)

// ConnOf is what InTx makes of a transaction.
func ConnOf(tx pgx.Tx) pawl.Conn { return conn{tx} }
