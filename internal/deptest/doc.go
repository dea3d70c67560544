// Package deptest holds the checks of the source tree's shape: which package may import which, how long import chains,
// files and functions may get. Its tests apply them to this module.
package deptest
