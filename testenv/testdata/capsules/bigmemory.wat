;; Has 256 pages (16 MiB) from the start.
(module
  (memory (export "memory") 256)
  (func (export "_start")))
