package wasm

import "fmt"

// Component is what was read of a component: its own imports and exports, and
// the core modules in it, at whatever depth.
type Component struct {
	Imports []string // names, such as wasi:cli/exit@0.2.0
	Exports []string // of instances
	// Modules are the outlines of all core modules.
	Modules []*Module
}

// The ids of a component's sections.
const (
	componentModule = 1
	componentNested = 4
	componentImport = 10
	componentExport = 11
)

// The bounds of what is read of a component. Tools make one module for each
// library and adapter, and nest components where they compose them.
const (
	maxNesting       = 16
	maxNestedModules = 1000
)

const componentHeader = "\x00asm\x0d\x00\x01\x00"

// IsComponent reports whether a binary begins as a component does.
func IsComponent(binary []byte) bool {
	return len(binary) >= len(componentHeader) && string(binary[:len(componentHeader)]) == componentHeader
}

// ParseComponent reads a component's outline, as [Parse] does a module's. It
// does not validate.
//
// # Errors
//
// [ErrNotWasm] for what is no component, [ErrMalformed].
func ParseComponent(binary []byte) (*Component, error) {
	if !IsComponent(binary) {
		return nil, ErrNotWasm
	}
	c := &Component{}
	if err := c.read(binary, 0); err != nil {
		return nil, err
	}
	return c, nil
}

// read reads a component that lies depth components deep.
func (c *Component) read(binary []byte, depth int) error {
	if !IsComponent(binary) {
		return fmt.Errorf("%w: a nested component has another header", ErrMalformed)
	}
	if depth > maxNesting {
		return fmt.Errorf("%w: components are nested more than %d deep", ErrMalformed, maxNesting)
	}
	r := reader{rest: binary[len(componentHeader):]}
	for len(r.rest) > 0 && !r.bad {
		id := r.byte()
		body := r.bytes(r.u32())
		if r.bad {
			break
		}
		if err := c.section(id, body, depth); err != nil {
			return err
		}
	}
	if r.bad {
		return fmt.Errorf("%w: it ends inside a section", ErrMalformed)
	}
	return nil
}

func (c *Component) section(id byte, body []byte, depth int) error {
	var item func(*reader)
	switch {
	case id == componentModule:
		if len(c.Modules) == maxNestedModules {
			return fmt.Errorf("%w: it has more than %d core modules", ErrMalformed, maxNestedModules)
		}
		m, err := Parse(body)
		if err != nil {
			return fmt.Errorf("%w: core module %d: %w", ErrMalformed, len(c.Modules), err)
		}
		c.Modules = append(c.Modules, m)
		return nil
	case id == componentNested:
		return c.read(body, depth+1)
	case id == componentImport && depth == 0:
		item = c.readImport
	case id == componentExport && depth == 0:
		item = c.readExport
	default:
		return nil
	}
	r := reader{rest: body}
	for n := r.u32(); n > 0 && !r.bad; n-- {
		item(&r)
	}
	if r.bad {
		return fmt.Errorf("%w: section %d cannot be read", ErrMalformed, id)
	}
	return nil
}

func (c *Component) readImport(r *reader) {
	name := r.externName()
	r.externType()
	c.Imports = append(c.Imports, name)
}

// sortInstance is the sort of an exported instance.
const sortInstance = 5

func (c *Component) readExport(r *reader) {
	name := r.externName()
	sort := r.byte()
	if sort == 0 { // something of a core module
		r.byte()
	}
	r.u32()
	if r.byte() == 1 {
		r.externType()
	}
	if sort == sortInstance {
		c.Exports = append(c.Exports, name)
	}
}

// externName reads the name of a component's import or export.
func (r *reader) externName() string {
	if kind := r.byte(); kind > 1 {
		r.bad = true
		return ""
	}
	return r.name()
}

// externType skips a type of a component's import or export.
func (r *reader) externType() {
	switch r.byte() {
	case 0: // a core module
		r.byte()
		r.u32()
	case 1, 4, 5: // a function, a component, an instance
		r.u32()
	case 2: // a value
		if r.byte() == 0 {
			r.u32()
			return
		}
		r.skipSigned(5)
	case 3: // a type
		if r.byte() == 0 {
			r.u32()
		}
	default:
		r.bad = true
	}
}
