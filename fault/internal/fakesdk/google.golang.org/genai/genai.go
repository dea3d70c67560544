// Package genai has an error of the shape of google.golang.org/genai's. Package fault asks for that path in the type.
package genai

import "strconv"

// APIError is what a response says, and nothing of its headers.
type APIError struct {
	Code    int              `json:"code,omitempty"`
	Message string           `json:"message,omitempty"`
	Status  string           `json:"status,omitempty"`
	Details []map[string]any `json:"details,omitempty"`
}

// Error returns code and message.
func (e APIError) Error() string { return "Error " + strconv.Itoa(e.Code) + ", Message: " + e.Message }
