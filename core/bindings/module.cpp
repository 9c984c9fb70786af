#include "bind.h"

NB_MODULE(_core_of_main, m) {
  // A program that ends with an exception still holds its groups, which is not a leak worth reporting.
  nanobind::set_leak_warnings(false);
  m.doc() = "The C++ core of smdp. Private: use the package smdp.";
  smdp::bind_arrays(m);
  smdp::bind_error(m);
  smdp::bind_store(m);
  smdp::bind_operation(m);
  smdp::bind_arrival(m);
  smdp::bind_sparse_sum(m);
  smdp::bind_call_name(m);
  smdp::bind_group(m);
  smdp::bind_host_memory(m);
  smdp::bind_limits(m);
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

// nanobind keeps one registry of this module's types per process; a second interpreter would take it from the first.
static bool is_in_main_interpreter() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return true;
  PyErr_SetString(PyExc_ImportError,
                  "[smdp] smdp works in the main interpreter only, but this is a subinterpreter. Import it in the main "
                  "interpreter, or start a process.");
  return false;
}

static int exec_in_main_interpreter(PyObject* module) {
  return is_in_main_interpreter() ? nanobind__core_of_main_exec(module) : -1;
}

// Like NB_MODULE's. From Python 3.13 on, the main interpreter calls it for all others, which then only run the module.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (!is_in_main_interpreter()) return nullptr;
  nanobind::detail::init_singletons();
  if (!nanobind::detail::nb_backend_init("_core")) return nullptr;
  static PyObject* definition = nullptr;
  if (definition == nullptr) {
    definition =
        NB_CALL(module_new)("_core", nullptr, reinterpret_cast<void*>(exec_in_main_interpreter), NB_ABI_MINOR_TAG);
  }
  return definition;
}
