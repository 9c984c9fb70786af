#include "smdp/meeting.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "smdp/group.h"

namespace nb = nanobind;

namespace smdp {
namespace {

// A context manager: its thread waits for other ranks between enter and exit.
class PythonMeeting {
 public:
  PythonMeeting(std::string group, int size, const Group* parent, const std::vector<int>& ranks)
      : group_(std::move(group)), size_(size), obstacle_(parent == nullptr ? Obstacle() : parent->watch(ranks)) {}
  PythonMeeting& enter() {
    meeting_ = std::make_unique<Meeting>(group_, size_, obstacle_);
    return *this;
  }
  void exit() { meeting_.reset(); }
  void check(bool has_failed) const {
    if (meeting_) meeting_->check(has_failed);
  }

 private:
  std::string group_;
  int size_;
  Obstacle obstacle_;
  std::unique_ptr<Meeting> meeting_;
};

}  // namespace

void bind_meeting(nb::module_& m) {
  nb::class_<PythonMeeting>(m, "Meeting",
                            "Announces that this thread waits for the ranks of a new group; see meeting.h.")
      .def(nb::init<std::string, int, const Group*, const std::vector<int>&>(), nb::arg("group"), nb::arg("size"),
           nb::arg("parent") = nb::none(), nb::arg("ranks") = std::vector<int>(),
           "`parent` and `ranks` are the group that the ranks belong to, if known; see Group::watch().")
      .def("__enter__", &PythonMeeting::enter, nb::rv_policy::reference_internal)
      .def(
          "__exit__", [](PythonMeeting& meeting, nb::args) { meeting.exit(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("check", &PythonMeeting::check, nb::arg("has_failed") = false,
           "Raises MismatchError or PeerLostError if the ranks can never all join.");
}

}  // namespace smdp
