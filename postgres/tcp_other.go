//go:build !linux

package postgres

import "syscall"

// control has nothing to set where the system has no tcp_user_timeout; keep-alive probes have to do.
func control(string, string, syscall.RawConn) error { return nil }
