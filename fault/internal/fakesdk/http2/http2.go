// Package http2 has errors of the shape of golang.org/x/net/http2's and of the copy of it inside of net/http. Package
// fault asks for the end of that path in the type.
package http2

import "fmt"

// ErrCode is an HTTP/2 error code.
type ErrCode uint32

// StreamError ends one stream.
type StreamError struct {
	StreamID uint32
	Code     ErrCode
	Cause    error
}

// Error returns stream and code.
func (e StreamError) Error() string {
	return fmt.Sprintf("stream error: stream ID %d; %v", e.StreamID, e.Code)
}

// GoAwayError ends a connection.
type GoAwayError struct {
	LastStreamID uint32
	ErrCode      ErrCode
	DebugData    string
}

// Error returns last stream and code.
func (e GoAwayError) Error() string {
	return fmt.Sprintf("http2: server sent GOAWAY and closed the connection; LastStreamID=%v, ErrCode=%v", e.LastStreamID, e.ErrCode)
}
