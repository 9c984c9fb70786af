// One function per public header, and one for NumPy arrays; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace smdp {

void bind_arrays(nanobind::module_& m);
void bind_error(nanobind::module_& m);
void bind_store(nanobind::module_& m);
void bind_operation(nanobind::module_& m);
void bind_arrival(nanobind::module_& m);
void bind_sparse_sum(nanobind::module_& m);
void bind_call_name(nanobind::module_& m);
void bind_group(nanobind::module_& m);
void bind_host_memory(nanobind::module_& m);
void bind_limits(nanobind::module_& m);
void bind_meeting(nanobind::module_& m);
void bind_gradient_reducer(nanobind::module_& m);
void bind_gradient_steps(nanobind::module_& m);
void bind_observability(nanobind::module_& m);
void bind_simulation(nanobind::module_& m);
void bind_link_cost(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_sharding(nanobind::module_& m);
void bind_pipeline(nanobind::module_& m);
void bind_partition(nanobind::module_& m);
void bind_info(nanobind::module_& m);

}  // namespace smdp
