// Package sdktest runs SDKs of model providers, as their users do, on fault.NewTransport against a local server that
// answers with the cases of package fault, or breaks off. It is a module of its own, so that no SDK is a requirement of
// Pawl. It has tests only.
package sdktest
