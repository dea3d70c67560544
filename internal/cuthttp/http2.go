package cuthttp

import (
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"strings"
)

// Frame types and error codes of RFC 9113.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway, frameWindow = 0, 1, 3, 4, 6, 7, 8

	codeProtocol, codeInternal, codeRefused = 1, 2, 7

	endStream, endHeaders, ack = 1, 4, 1
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// conn2 is one connection of HTTP/2, as little of it as a test of its errors needs: requests one after the other,
// headers that fit into one frame, and no header of a request decoded.
type conn2 struct {
	s    *Server
	c    net.Conn
	last uint32 // stream
}

type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

func (s *Server) serve2(c net.Conn) {
	if s.replies(len(s.Requests())).Cut == AtStart {
		hello := make([]byte, 1) // the handshake must be over, or it would be a handshake that failed
		_, _ = c.Read(hello)
		return
	}
	h := conn2{s: s, c: c}
	if _, err := io.ReadFull(c, make([]byte, len(preface))); err != nil {
		return
	}
	if h.write(frame{kind: frameSettings}) != nil {
		return
	}
	for h.serve() == nil {
	}
}

func (h *conn2) read() (frame, error) {
	var head [9]byte
	if _, err := io.ReadFull(h.c, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: head[3], flags: head[4], stream: binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1)}
	f.payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err := io.ReadFull(h.c, f.payload)
	return f, err
}

func (h *conn2) write(f frame) error {
	n := len(f.payload)
	head := []byte{byte(n >> 16), byte(n >> 8), byte(n), f.kind, f.flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], f.stream)
	_, err := h.c.Write(append(head, f.payload...))
	return err
}

func (h *conn2) code(kind byte, stream uint32, words ...uint32) error {
	var payload []byte
	for _, w := range words {
		payload = binary.BigEndian.AppendUint32(payload, w)
	}
	return h.write(frame{kind: kind, stream: stream, payload: payload})
}

// serve serves the next request. An error ends the connection.
func (h *conn2) serve() error {
	f, err := h.next()
	if err != nil || f.kind != frameHeaders || f.stream <= h.last {
		return err // of a stream that was reset: not asked for any more
	}
	h.last = f.stream
	n := h.s.begin(Request{})
	r := h.s.replies(n)
	early := map[Cut]uint32{Refuse: codeRefused, Violation: codeProtocol, AfterHeaders: codeInternal}
	if code, ok := early[r.Cut]; ok {
		return h.code(frameReset, f.stream, code)
	}
	if r.Cut == GoAwayBefore {
		_ = h.code(frameGoAway, 0, max(f.stream, 2)-2, 0) // the last is the one before
		return h.drain()
	}
	if f.flags&endStream == 0 {
		if whole, err := h.body(n, f.stream, r.Cut == MidBody); !whole {
			return err
		}
	} else {
		h.s.note(n, 0, true)
	}
	switch r.Cut {
	case BeforeReply:
		return h.code(frameReset, f.stream, codeInternal)
	case GoAwayWithin:
		_ = h.code(frameGoAway, 0, f.stream, codeInternal)
		return errClosed
	case Stay:
		return h.drain()
	default:
		return h.answer(f.stream, r)
	}
}

// body reads the body of a request, or the beginning of it, and reports whether it did to its end.
func (h *conn2) body(n int, stream uint32, cut bool) (whole bool, err error) {
	for read := 0; ; {
		d, err := h.next()
		switch {
		case err != nil:
			return false, err
		case d.kind != frameData || d.stream != stream:
			continue
		}
		read += len(d.payload)
		if cut && read > 0 {
			h.s.note(n, read, false)
			return false, h.code(frameReset, stream, codeInternal)
		}
		whole := d.flags&endStream != 0
		if h.s.note(n, read, whole); whole {
			return true, nil
		}
		if len(d.payload) > 0 {
			_ = h.code(frameWindow, 0, uint32(len(d.payload)))
			_ = h.code(frameWindow, stream, uint32(len(d.payload)))
		}
	}
}

// next returns the next frame that is about a request, and answers those that are about the connection.
func (h *conn2) next() (frame, error) {
	for {
		f, err := h.read()
		switch {
		case err != nil:
			return f, err
		case f.kind == frameSettings && f.flags&ack == 0:
			err = h.write(frame{kind: frameSettings, flags: ack})
		case f.kind == framePing && f.flags&ack == 0:
			err = h.write(frame{kind: framePing, flags: ack, payload: f.payload})
		case f.kind == frameHeaders, f.kind == frameData:
			return f, nil
		}
		if err != nil {
			return f, err
		}
	}
}

// drain waits until the client has gone.
func (h *conn2) drain() error {
	for {
		if _, err := h.next(); err != nil {
			return err
		}
	}
}

func (h *conn2) answer(stream uint32, r Reply) error {
	fields := field(nil, ":status", strconv.Itoa(r.status()))
	for name, value := range r.Header {
		fields = field(fields, strings.ToLower(name), value)
	}
	if err := h.write(frame{kind: frameHeaders, flags: endHeaders, stream: stream, payload: fields}); err != nil {
		return err
	}
	for body := r.Body; len(body) > 0; {
		part := body[:min(len(body), 16<<10)]
		body = body[len(part):]
		if err := h.write(frame{kind: frameData, stream: stream, payload: []byte(part)}); err != nil {
			return err
		}
	}
	if r.Cut == MidReply {
		return h.code(frameReset, stream, codeInternal)
	}
	return h.write(frame{kind: frameData, flags: endStream, stream: stream})
}

// field appends a header in HPACK's plainest form: a literal without index and without Huffman's code.
func field(to []byte, name, value string) []byte {
	to = append(to, 0)
	for _, text := range []string{name, value} {
		if n := len(text); n < 127 {
			to = append(to, byte(n))
		} else {
			to = append(to, 127)
			for n -= 127; n >= 128; n >>= 7 {
				to = append(to, byte(n&127|128))
			}
			to = append(to, byte(n))
		}
		to = append(to, text...)
	}
	return to
}
