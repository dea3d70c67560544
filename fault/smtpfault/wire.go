package smtpfault

import (
	"context"
	"errors"
	"net"
	"time"
)

// wire is the connection below all encryption. One goroutine reads and writes; any may close it.
type wire struct {
	net.Conn
	patience time.Duration // how long one read or write may take
	unread   int           // bytes that the server may still send
	cut      bool          // a write was not taken in full: its last bytes, and all after it, never left
}

func dial(ctx context.Context, addr string) (*wire, error) {
	conn, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, patience: silence, unread: maxReads}, nil
}

func (w *wire) Read(p []byte) (int, error) {
	if w.unread <= 0 {
		return 0, errors.New("the server talks without end")
	}
	if err := w.SetReadDeadline(time.Now().Add(w.patience)); err != nil {
		return 0, err
	}
	n, err := w.Conn.Read(p)
	w.unread -= n
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(w.patience)); err != nil {
		w.cut = true
		return 0, err
	}
	n, err := w.Conn.Write(p)
	w.cut = w.cut || n < len(p)
	return n, err
}
