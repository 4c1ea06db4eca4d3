;; Grows its table by 100 elements at a time until that is refused.
(module
  (memory (export "memory") 1)
  (table 0 funcref)
  (func (export "_start")
    (loop $l (br_if $l (i32.ne (table.grow (ref.null func) (i32.const 100)) (i32.const -1))))
    unreachable))
