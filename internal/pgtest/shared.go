//go:build unix

package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience bounds every single thing that pgtest does to a server. Far more than any of them takes.
const patience = 60 * time.Second

// shared starts the process's private server at the first call. It is a package variable, against the house rule,
// because a test process offers no other owner: the supervisor ends what it holds.
var shared = sync.OnceValues(func() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return newServer(ctx, settings{})
})

// URL creates an empty database on the shared server and returns its URL. The database is dropped, with whatever is
// still connected to it, when the test ends. Safe for parallel tests.
func URL(t testing.TB) string {
	t.Helper()
	if external := os.Getenv("PAWL_TEST_POSTGRES"); external != "" {
		if err := checkVersion(t.Context(), external); err != nil {
			t.Fatalf("pgtest: PAWL_TEST_POSTGRES: %v", err)
		}
		return newDatabase(t, external)
	}
	s, err := shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	s.showLog(t)
	return newDatabase(t, s.URL())
}

// newDatabase makes a database on the server at admin, and drops it when the test ends.
func newDatabase(t testing.TB, admin string) string {
	t.Helper()
	name := "pawl_test_" + strings.ToLower(rand.Text()[:16])
	// template0, since template1 cannot be copied while anybody is connected to it.
	if err := execute(t.Context(), admin, `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		t.Fatalf("pgtest: create database %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := execute(context.WithoutCancel(t.Context()), admin, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Errorf("pgtest: drop database %s: %v", name, err)
		}
	})
	u, err := withDatabase(admin, name)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return u
}

// withDatabase returns rawURL with another database in it.
func withDatabase(rawURL, database string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the server must be given as a URL, postgres://user@host:port/database")
	}
	u.Path = "/" + database
	return u.String(), nil
}

func checkVersion(ctx context.Context, rawURL string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var number int
	if err := query(ctx, rawURL, `SELECT current_setting('server_version_num')::int`, &number); err != nil {
		return err
	}
	if number < oldest*10000 {
		return fmt.Errorf("the server is PostgreSQL %d, and Pawl needs %d or later", number/10000, oldest)
	}
	return nil
}

// execute runs one statement in a connection of its own, which may write even where sessions are read-only.
func execute(ctx context.Context, rawURL, sql string) error {
	return query(ctx, rawURL, sql, nil)
}

// query is execute for a statement that returns one value; dest nil expects none.
func query(ctx context.Context, rawURL, sql string, dest any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	config, err := pgx.ParseConfig(rawURL)
	if err != nil {
		return err
	}
	config.RuntimeParams["application_name"] = "pgtest"
	if dest == nil {
		config.RuntimeParams["default_transaction_read_only"] = "off"
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if dest == nil {
		_, err = conn.Exec(ctx, sql)
		return err
	}
	return conn.QueryRow(ctx, sql).Scan(dest)
}
