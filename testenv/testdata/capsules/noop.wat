;; Does nothing and exits 0 by returning.
(module
  (memory (export "memory") 1)
  (func (export "_start")))
