#include "bind.h"

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of smdp. Private: use the package smdp.";
  smdp::bind_error(m);
  smdp::bind_store(m);
  smdp::bind_operation(m);
  smdp::bind_group(m);
  smdp::bind_info(m);
}
