// Package crashtest kills, freezes and cuts off real worker processes at every point of the protocol, and counts what
// became of the effects. It has tests only.
package crashtest
