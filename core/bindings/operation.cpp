#include "smdp/operation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>

#include "bind.h"
#include "error.h"
#include "interruption.h"
#include "released.h"
#include "smdp/error.h"

namespace nb = nanobind;

namespace smdp {

void bind_operation(nb::module_& m) {
  nb::class_<Operation>(m, "Handle", "An operation in flight. Its buffers must live until it is done.")
      .def(
          "wait",
          [](Operation& operation, std::optional<double> timeout) {
            if (!timeout) {
              bool is_done = false;
              {
                const Released release;
                is_done = operation.wait_unless(is_interrupted);
              }
              if (!is_done) throw nb::python_error();
              return operation.wait();
            }
            const auto start = std::chrono::steady_clock::now();
            for (;;) {
              const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                  std::chrono::duration<double>(*timeout) - (std::chrono::steady_clock::now() - start));
              bool is_done = false;
              {
                const Released release;
                is_done = operation.wait_for(std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(0),
                                                                                   std::chrono::milliseconds(200)));
              }
              if (is_done) return operation.wait();
              if (is_interrupted()) throw nb::python_error();
              if (std::chrono::steady_clock::now() - start >= std::chrono::duration<double>(*timeout)) {
                std::array<char, 32> text{};  // always with a decimal point, whatever the locale
                const auto end = std::to_chars(text.data(), text.data() + text.size(), *timeout).ptr;
                throw TimeoutError("[smdp] wait() gave up after " + std::string(text.data(), end) +
                                   " s; the operation is still running. Call wait() again, or with a longer timeout.");
              }
            }
          },
          nb::arg("timeout") = nb::none(),
          "Blocks until the operation is done and raises its error, if any. Raises TimeoutError after `timeout` "
          "seconds.")
      .def("done", &Operation::done)
      .def(
          "error", [](const Operation& operation) { return to_python(operation.error()); },
          nb::sig("def error(self) -> Exception | None"))
      .def("source", &Operation::source)
      .def("notify", &Operation::notify, nb::arg("token"));
  m.def(
      "next_completion",
      [](double timeout) { return next_completion(std::chrono::milliseconds(static_cast<long long>(timeout * 1000))); },
      nb::arg("timeout"), nb::call_guard<Released>(),
      "Returns the next token of an ended operation (see Handle.notify), or None after `timeout` seconds.");
}

}  // namespace smdp
