// Command embed is a shop's HTTP server with a worker inside. An order and the run that fulfils it are written in one
// transaction, so there is never one without the other.
//
//	go run ./examples/embed
//	curl -d '{"id":"7","item":"lamp","count":2}' http://127.0.0.1:8080/orders
//	curl http://127.0.0.1:8080/orders/7
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/sqlite"
)

// shop has the program's own tables in Pawl's database, and the engine.
type shop struct {
	db     *sql.DB
	engine *pawl.Engine
	orders *pawl.Workflow[Order, string]
}

const schema = `
CREATE TABLE IF NOT EXISTS shop_orders (id TEXT PRIMARY KEY, item TEXT NOT NULL, count INTEGER NOT NULL, status TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS shop_stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL);
INSERT INTO shop_stock VALUES ('lamp', 10), ('chair', 3) ON CONFLICT DO NOTHING;`

func newShop(ctx context.Context, store *sqlite.Store, o *pawl.Options) (s *shop, err error) {
	s = &shop{db: store.DB()}
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	s.orders = pawl.Define("fulfil-order", "v1", s.fulfil)
	s.engine, err = pawl.New(store, o, s.orders)
	return s, err
}

// fulfil is the body. Both of its steps are transactions in Pawl's own database: they happen exactly once.
func (s *shop) fulfil(run *pawl.Run, o Order) (string, error) {
	left, err := pawl.Tx(run, "reserve", o, s.reserve)
	if errors.Is(err, errSoldOut) {
		return "sold out", pawl.TxDo(run, "reject", o, s.status("rejected"))
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d left", left), pawl.TxDo(run, "accept", o, s.status("accepted"))
}

// errSoldOut is a reason: unlike other sentinels it is still found in the stored error after a restart.
const errSoldOut = fault.Reason("sold_out")

func (s *shop) reserve(ctx context.Context, tx *sql.Tx, o Order) (left int, err error) {
	err = tx.QueryRowContext(ctx, `UPDATE shop_stock SET count = count - $1 WHERE item = $2 AND count >= $1 RETURNING count`,
		o.Count, o.Item).Scan(&left)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, fault.Invalid(errSoldOut)
	}
	return left, err
}

func (s *shop) status(text string) func(context.Context, *sql.Tx, Order) error {
	return func(ctx context.Context, tx *sql.Tx, o Order) error {
		_, err := tx.ExecContext(ctx, `UPDATE shop_orders SET status = $1 WHERE id = $2`, text, o.ID)
		return err
	}
}

func run(ctx context.Context, db, addr string) (err error) {
	store, err := sqlite.Open(db, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s, err := newShop(ctx, store, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	life, quit := context.WithCancelCause(ctx)
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	var all sync.WaitGroup
	all.Go(func() { quit(server.Serve(l)) })
	all.Go(func() { quit(s.engine.Work(life)) }) // when life ends it lets running steps finish, and returns
	<-life.Done()
	err = server.Shutdown(context.WithoutCancel(ctx))
	all.Wait()
	if ctx.Err() == nil { // nobody asked us to stop
		err = errors.Join(context.Cause(life), err)
	}
	return err
}

func main() {
	db := flag.String("db", "pawl.db", "SQLite file")
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *db, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}
