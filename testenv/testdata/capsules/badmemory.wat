;; Imports its memory.
(module
  (import "env" "memory" (memory 1))
  (func (export "_start")))
