package fault

import (
	"encoding/binary"
)

// frames reads AWS's event stream: frames of a prelude of twelve bytes, headers, a payload and a checksum, big endian. What
// an event is stands in its headers. The checksums are the SDK's affair.
func (s *stream) frames(body []byte) {
	s.model = true
	for len(body) > 0 && s.fault == nil {
		if len(body) < 16 {
			return
		}
		size, headers := uint64(binary.BigEndian.Uint32(body)), uint64(binary.BigEndian.Uint32(body[4:]))
		if size < 16 || headers > size-16 {
			return // not this format, and so not its end
		}
		whole := size <= uint64(len(body))
		frame := body[:min(size, uint64(len(body)))]
		s.frame(frame, min(12+headers, uint64(len(frame))), whole)
		if !whole {
			return
		}
		body = body[size:]
	}
}

// frame takes in one frame whose payload begins at the given place.
func (s *stream) frame(frame []byte, payload uint64, whole bool) {
	named := frameHeaders(frame[12:payload])
	data := frame[payload:]
	if whole {
		data = data[:len(data)-4]
	}
	a := &answer{status: 200, http: 200, header: s.header, event: named[":event-type"], code: named[":exception-type"]}
	a.failed = named[":message-type"] == "exception" || named[":message-type"] == "error"
	first(&a.code, named[":error-code"])
	first(&a.message, named[":error-message"])
	a.structure = a.code != ""
	if len(data) > maxBody {
		data = data[:maxBody]
	}
	a.whole = scanJSON(data, a.see)
	if !whole && !a.failed {
		return // half of an event ends nothing
	}
	if a.event == "chunk" { // InvokeModel wraps the model's own dialect, whose end it does not define
		s.ended = true
	}
	s.take(a)
}

// frameHeaders reads the texts among the headers of a frame; an unreadable rest is left out.
func frameHeaders(b []byte) map[string]string {
	// The lengths of the values of types 0 to 9; those of 6 and 7 stand before them.
	lengths := [...]int{0, 0, 1, 2, 4, 8, -1, -1, 8, 16}
	named := map[string]string{}
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < n+2 {
			break
		}
		name, kind := string(b[1:1+n]), b[1+n]
		b = b[2+n:]
		if int(kind) >= len(lengths) {
			break
		}
		size := lengths[kind]
		if size < 0 {
			if len(b) < 2 {
				break
			}
			size, b = int(binary.BigEndian.Uint16(b)), b[2:]
		}
		if len(b) < size {
			break
		}
		if kind == 7 {
			named[name] = string(b[:size])
		}
		b = b[size:]
	}
	return named
}
