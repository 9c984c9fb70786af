#include "bind.h"

NB_MODULE(_core_of_main, m) {
  // A program that ends by an exception still holds its groups; that is no leak of ours to shout about.
  nanobind::set_leak_warnings(false);
  m.doc() = "The C++ core of smdp. Private: use the package smdp.";
  smdp::bind_arrays(m);
  smdp::bind_error(m);
  smdp::bind_store(m);
  smdp::bind_operation(m);
  smdp::bind_arrival(m);
  smdp::bind_group(m);
  smdp::bind_meeting(m);
  smdp::bind_gradient_reducer(m);
  smdp::bind_gradient_steps(m);
  smdp::bind_observability(m);
  smdp::bind_simulation(m);
  smdp::bind_link_cost(m);
  smdp::bind_memory(m);
  smdp::bind_sharding(m);
  smdp::bind_pipeline(m);
  smdp::bind_partition(m);
  smdp::bind_info(m);
}

// What nanobind knows of this module's types is one per process: a second interpreter would take it from the first.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "[smdp] smdp works in the main interpreter only, and this is a subinterpreter. Import it there, or "
                  "start a process.");
  return nullptr;
}
