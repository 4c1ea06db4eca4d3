package sandbox

import (
	"errors"
	"os"
)

// compileChild compiles one module.
type compileChild struct {
	cfg              helloCompile
	control          *pipe
	module, compiled *os.File
}

func (c *compileChild) start() error { return nil }

func (c *compileChild) serve() int {
	var answer compileAnswer
	var no refusal
	var bad damaged
	n, err := c.compile()
	switch {
	case err == nil:
		answer.Needs = n
	case errors.As(err, &bad):
		answer.Refused, answer.Damaged = err.Error(), true
	case errors.As(err, &no):
		answer.Refused = err.Error()
	default:
		answer.Error = err.Error()
	}
	if err := c.control.sendJSON(msgCompiled, answer); err != nil {
		return 1
	}
	return 0
}

func (c *compileChild) compile() (needs, error) {
	binary, err := readVerified(c.module, c.cfg.Name, c.cfg.Digest, c.cfg.MaxModuleBytes)
	if err != nil {
		return needs{}, err
	}
	var n needs
	compile := compileWith
	if c.cfg.Components && IsComponent(binary) {
		compile = compileComponent
		n, err = readComponent(c.cfg.Name, binary)
	} else {
		binary, n, err = outlined(c.cfg.Name, binary)
	}
	if err != nil {
		return n, err
	}
	content, err := compile(c.cfg.Name, binary)
	if err != nil {
		return n, err
	}
	_, err = c.compiled.Write(content)
	return n, errors.Join(err, c.compiled.Close())
}
