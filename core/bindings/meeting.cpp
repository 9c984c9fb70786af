#include "smdp/meeting.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "bind.h"

namespace nb = nanobind;

namespace smdp {
namespace {

// A context manager: its thread waits between enter and exit.
class PythonMeeting {
 public:
  PythonMeeting(std::string group, int size) : group_(std::move(group)), size_(size) {}
  PythonMeeting& enter() {
    meeting_ = std::make_unique<Meeting>(group_, size_);
    return *this;
  }
  void exit() { meeting_.reset(); }
  void check() const {
    if (meeting_) meeting_->check();
  }

 private:
  std::string group_;
  int size_;
  std::unique_ptr<Meeting> meeting_;
};

}  // namespace

void bind_meeting(nb::module_& m) {
  nb::class_<PythonMeeting>(m, "Meeting", "While this thread waits for the ranks of a new group; see meeting.h.")
      .def(nb::init<std::string, int>(), nb::arg("group"), nb::arg("size"))
      .def("__enter__", &PythonMeeting::enter, nb::rv_policy::reference_internal)
      .def(
          "__exit__", [](PythonMeeting& meeting, nb::args) { meeting.exit(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("check", &PythonMeeting::check, "Raises MismatchError if they will never all come.");
}

}  // namespace smdp
