//go:build unix && race

package crashtest_test

const raceEnabled = true
