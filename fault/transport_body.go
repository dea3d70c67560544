package fault

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"time"
)

// maxFingerprint is how many bytes of a body are read ahead in order to compare it.
const maxFingerprint = 16 << 20

// fingerprint tells one write from another. The zero value equals none.
type fingerprint struct {
	known bool
	sum   [sha256.Size]byte
}

// newFingerprint reads method, URL and, where it can be had again, the body of req.
func newFingerprint(req *http.Request) fingerprint {
	h := sha256.New()
	_, _ = io.WriteString(h, req.Method+" "+req.URL.String()+"\n")
	if req.Body == nil || req.Body == http.NoBody {
		return fingerprint{known: true, sum: [sha256.Size]byte(h.Sum(nil))}
	}
	if req.GetBody == nil || req.ContentLength > maxFingerprint {
		return fingerprint{}
	}
	body, err := req.GetBody()
	if err != nil {
		return fingerprint{}
	}
	defer body.Close()
	if n, err := io.Copy(h, io.LimitReader(body, maxFingerprint+1)); err != nil || n > maxFingerprint {
		return fingerprint{}
	}
	return fingerprint{known: true, sum: [sha256.Size]byte(h.Sum(nil))}
}

func (p fingerprint) equal(o fingerprint) bool { return p.known && o.known && p.sum == o.sum }

// renewed is a body that was had again in place of another one, which it closes too.
type renewed struct {
	io.ReadCloser
	old io.Closer
}

func (r *renewed) Close() error {
	err := r.ReadCloser.Close()
	_ = r.old.Close() // often the same one
	return err
}

// watched is the body of a request on its way out.
type watched struct {
	io.ReadCloser
	s *send
}

func (s *send) watch(body io.ReadCloser) io.ReadCloser { return &watched{ReadCloser: body, s: s} }

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.s.a.mu.Lock()
	w.s.seen.BodyBytes += int64(n)
	w.s.a.mu.Unlock()
	return n, err
}

// incoming is the body of an answer on its way to the caller.
type incoming struct {
	ctx     context.Context // of the request
	body    io.ReadCloser
	s       *send
	release func()
}

func (in *incoming) Read(p []byte) (int, error) {
	n, err := in.body.Read(p)
	in.s.a.mu.Lock()
	in.s.saw(p[:n])
	in.s.a.mu.Unlock()
	if err != nil {
		in.s.finish(in.ctx, err)
	}
	return n, err
}

// Close ends the answer where the caller has stopped reading.
func (in *incoming) Close() error {
	err := in.body.Close()
	in.s.finish(in.ctx, nil)
	in.release()
	return err
}

// finish notes why the answer's body ended: io.EOF, another error, or nil if the caller had enough.
func (s *send) finish(ctx context.Context, err error) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.over {
		return
	}
	switch {
	case err == io.EOF:
		s.reach(PhaseDone)
	case err != nil && ctx.Err() == nil: // not by our own side
		s.broken = err
	}
	s.end(time.Now())
}
