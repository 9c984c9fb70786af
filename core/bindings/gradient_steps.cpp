#include "smdp/gradient_steps.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {

void bind_gradient_steps(nb::module_& m) {
  using Release = nb::call_guard<Released>;
  nb::class_<GradientSteps>(m, "GradientSteps", "Drives a GradientReducer for ops of a graph, which find it by its id.")
      .def(
          "__init__",
          [](GradientSteps* self, Group& group,
             const std::vector<std::tuple<std::string, std::size_t, int, std::string>>& list,
             const std::string& compression, std::size_t buffer_bytes, double factor, std::string purpose,
             std::vector<std::string> replaced) {
            GradientReducerOptions options;
            options.compression = parse_compression(compression);
            options.buffer_bytes = buffer_bytes;
            options.factor = factor;
            options.purpose = std::move(purpose);
            options.replaced = std::move(replaced);
            std::vector<Gradient> gradients;
            options.compares_names = false;
            for (const auto& [name, count, dtype, shape] : list) {
              gradients.push_back({name, count, static_cast<DType>(dtype), shape});
            }
            const Released release;
            new (self) GradientSteps(group, std::move(gradients), options);
          },
          nb::arg("group"), nb::arg("gradients"), nb::arg("compression") = "none",
          nb::arg("buffer_bytes") = GradientReducerOptions{}.buffer_bytes, nb::arg("factor") = 0.0,
          nb::arg("purpose") = "", nb::arg("replaced") = std::vector<std::string>(),
          "Collective; see gradient_steps.h. `gradients` lists (name, elements, dtype, shape as text).")
      .def_prop_ro("id", &GradientSteps::id)
      .def_prop_ro("group_name", &GradientSteps::group_name)
      .def("explain", &GradientSteps::explain)
      .def("abort", &GradientSteps::abort, nb::arg("reason"), Release());
}

}  // namespace smdp
