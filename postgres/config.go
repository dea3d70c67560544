package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	connectTimeout = 10 * time.Second
	// deadPeer is how long the kernel waits for a sign of the other end before a connection counts as broken. Without it
	// a write to a machine that has vanished waits for many minutes.
	deadPeer = 15 * time.Second
)

// parse reads the URL and fills in what it leaves open.
func parse(url string) (*pgx.ConnConfig, error) {
	if strings.TrimSpace(url) == "" {
		return nil, errors.New("the URL is empty: want postgres://user@host/database")
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, badURL(err)
	}
	if strings.Contains(cfg.Host, "@") { // an @ in the password that was not encoded: its end would be shown as the host
		return nil, badURL(errors.New("@ in the host"))
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "pawl"
	}
	if cfg.ValidateConnect == nil { // no target_session_attrs in the URL
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	d := &net.Dialer{KeepAlive: deadPeer, Control: control}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return d.DialContext(ctx, network, addr)
	}
	return cfg, nil
}

// badURL says what is wrong without quoting any of it: what the parser could not take apart may be the password.
func badURL(err error) error {
	reason := "want postgres://user:password@host:port/database, with special characters in the password percent-encoded"
	if _, ok := errors.AsType[*strconv.NumError](err); ok {
		reason = "a number in it is wrong; " + reason
	}
	return fmt.Errorf("the URL cannot be read: %s", reason)
}

// place names the database for people, without user and password.
func place(cfg *pgx.ConnConfig) string {
	host := cfg.Host
	if strings.HasPrefix(host, "/") {
		host = "socket " + host
	} else {
		host = net.JoinHostPort(host, strconv.Itoa(int(cfg.Port)))
	}
	return fmt.Sprintf("%q at %s", cfg.Database, host)
}
