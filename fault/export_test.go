package fault

// What the tests of this package see of its inside.
var (
	Unsent    = unsent
	ScanJSON  = func(data []byte) bool { return scanJSON(data, func([]byte, value) {}) }
	Redact    = redact
	RetryTime = parseRetryAfter
	ResetTime = parseReset
	TextDelay = delayInText
)
