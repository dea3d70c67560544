//go:build unix

// Package pgtest gives tests a real PostgreSQL, version 15 or later.
//
// [URL] returns a fresh database on a server that all tests of the process share. That server is the one named by
// the environment variable PAWL_TEST_POSTGRES, where only databases called pawl_test_* are made and dropped; without
// the variable it is a private cluster made from the installed binaries. [Private] starts a cluster for one test,
// which may stop it, kill it and make it read-only. [NewProxy] puts a TCP proxy in front of a server and cuts, stalls
// or delays what passes, down to a single COMMIT.
//
// A private cluster does not outlive the test process, however that ends: see supervisor.go.
//
// No test is skipped for want of a server. A test that cannot get one fails with a line that says what to install.
//
// Servers and proxies run goroutines of their own, so none of this may be called inside a testing/synctest bubble.
package pgtest
