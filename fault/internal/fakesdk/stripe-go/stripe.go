// Package stripe has an error of the shape of stripe-go's. Package fault asks for that path in the type.
package stripe

import "net/http"

// APIResponse is what a response says.
type APIResponse struct {
	Header  http.Header
	RawJSON []byte
}

// APIResource is what every object of the API begins with.
type APIResource struct {
	LastResponse *APIResponse `json:"-"`
}

// Error is an error of the API.
type Error struct {
	APIResource
	Code           string `json:"code,omitempty"`
	HTTPStatusCode int    `json:"status,omitempty"`
	Msg            string `json:"message"`
	Type           string `json:"type"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Msg }
