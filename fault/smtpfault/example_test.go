package smtpfault_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/smtpfault"
)

// A server that puts everybody off has proven that it did not take the mail, so even a step that must not happen twice
// may try again.
func ExampleServer_Send() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.WriteString(conn, "421 4.7.0 too busy, try again in 10 minutes\r\n")
			conn.Close()
		}
	}()

	server := &smtpfault.Server{Addr: l.Addr().String()}
	msg := strings.NewReader("Message-ID: <invoice-42@shop.example>\r\nSubject: Invoice 42\r\n\r\nPlease pay.\r\n")
	_, err = server.Send(context.Background(), "shop@example.com", []string{"customer@example.com"}, msg)
	f := fault.From(err)
	fmt.Println(f.Class, f.Outcome, f.Delay)
	d := fault.Decide(f, fault.KindOnce, fault.Budget{Attempt: 1})
	fmt.Println(d.Action, d.Wait, "-", d.Why)
	// Output:
	// transient rejected 10m0s
	// park 10m0s - waits as told
}
