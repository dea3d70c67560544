// Package fakesqlite has an error of the shape of modernc.org/sqlite's, whose code a test can choose. It is a
// package of its own because package fault asks for sqlite in the path of the type.
package fakesqlite

import "strconv"

// Error is an SQLite result code, extended or primary.
type Error int

// Error returns the code as text.
func (e *Error) Error() string { return "sqlite: " + strconv.Itoa(int(*e)) }

// Code returns the code.
func (e *Error) Code() int { return int(*e) }
