// Package torture runs worker processes over a mixed load while it kills, freezes and cuts them off at random, lets a
// person answer what nobody can know, and in the end counts what the world has seen against the journals. It has tests
// only; docs/torture.md says how to run it.
package torture
