;; Asks for more than its own maximum of 2 pages, is refused, and exits 0.
(module
  (memory (export "memory") 1 2)
  (func (export "_start")
    (if (i32.ne (memory.grow (i32.const 2)) (i32.const -1)) (then unreachable))))
