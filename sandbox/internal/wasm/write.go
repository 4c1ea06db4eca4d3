package wasm

// binary puts the module together again: what each section had, and what was
// added to it. Custom sections other than the names are left out.
func (w *instrumenter) binary() []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	for _, id := range order {
		var body []byte
		switch id {
		case sectionType:
			body = w.extend(id, len(w.helperTypes), func(b []byte, i int) []byte { return append(b, w.helperTypes[i]...) })
		case sectionFunction:
			body = w.extend(id, len(w.helpers), func(b []byte, i int) []byte {
				return appendU64(b, uint64(len(w.module.types)+i))
			})
		case sectionGlobal: // mutable i64, 0
			body = w.extend(id, len(w.globals), func(b []byte, _ int) []byte {
				return append(b, 0x7e, 1, 0x42, 0, 0x0b)
			})
		case sectionExport:
			body = w.exports()
		case sectionStart:
		case sectionCode:
			body = appendU64(nil, uint64(w.bodyCount)+uint64(len(w.helpers)))
			body = append(body, w.bodies...)
			for _, helper := range w.helpers {
				body = append(appendU64(body, uint64(len(helper))), helper...)
			}
		default:
			body = w.part(id)
		}
		if body != nil {
			out = appendSection(out, id, body)
		}
	}
	for _, s := range w.module.sections {
		r := reader{rest: s.body}
		if s.id == sectionCustom && r.name() == "name" {
			out = appendSection(out, s.id, s.body)
		}
	}
	return out
}

// extend adds n items at the end of a section, which need not be there.
func (w *instrumenter) extend(id byte, n int, item func([]byte, int) []byte) []byte {
	r := reader{rest: w.part(id)}
	count := uint32(0)
	if r.rest != nil {
		count = r.u32()
	} else if n == 0 {
		return nil
	}
	body := append(appendU64(nil, uint64(count)+uint64(n)), r.rest...)
	for i := range n {
		body = item(body, i)
	}
	return body
}

func (w *instrumenter) exports() []byte {
	n := len(w.globals)
	start := w.part(sectionStart)
	if start != nil {
		n++
	}
	return w.extend(sectionExport, n, func(b []byte, i int) []byte {
		if i == len(w.globals) {
			b = append(appendU64(b, uint64(len(ExportStart))), ExportStart...)
			return append(append(b, byte(KindFunc)), start...)
		}
		b = append(appendU64(b, uint64(len(w.globals[i]))), w.globals[i]...)
		return appendU64(append(b, byte(KindGlobal)), uint64(w.module.globals)+uint64(i))
	})
}

func appendSection(out []byte, id byte, body []byte) []byte {
	out = appendU64(append(out, id), uint64(len(body)))
	return append(out, body...)
}

func appendU64(out []byte, v uint64) []byte {
	for v >= 0x80 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v))
}

func appendS64(out []byte, v int64) []byte {
	for v < -64 || v > 63 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v)&0x7f)
}
