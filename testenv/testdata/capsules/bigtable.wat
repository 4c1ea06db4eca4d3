;; Has 200,000 table elements from the start.
(module
  (memory (export "memory") 1)
  (table 200000 funcref)
  (func (export "_start")))
