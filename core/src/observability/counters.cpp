#include "observability/counters.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/mutex.h"

namespace smdp {
namespace {

struct Counters {
  Mutex mutex;  // no other lock is taken under it
  std::map<std::pair<const char*, const char*>, OperationCount> operations SMDP_GUARDED_BY(mutex);
  StepCount steps SMDP_GUARDED_BY(mutex);
  double exposed_seconds SMDP_GUARDED_BY(mutex) = 0;  // of steps that may not have ended
  TimePoint last_finish SMDP_GUARDED_BY(mutex){};     // time of the last call of seconds_computed()
  double exposed_at_finish SMDP_GUARDED_BY(mutex) = 0;
};

Counters& counters() {
  static Counters& only = *new Counters;  // never destroyed, because threads may outlive main
  return only;
}

}  // namespace

void count_operation(const char* operation, const char* algorithm, std::size_t bytes, double seconds) {
  Counters& all = counters();
  const Lock lock(all.mutex);
  OperationCount& one = all.operations[{operation, algorithm}];
  ++one.calls;
  one.bytes += bytes;
  one.seconds += seconds;
}

void count_exposed(double seconds) {
  Counters& all = counters();
  const Lock lock(all.mutex);
  all.exposed_seconds += seconds;
}

double seconds_computed(TimePoint now) {
  Counters& all = counters();
  const Lock lock(all.mutex);
  const double passed = std::chrono::duration<double>(now - std::exchange(all.last_finish, now)).count();
  return passed - (all.exposed_seconds - std::exchange(all.exposed_at_finish, all.exposed_seconds));
}

void count_step(std::size_t bytes, double exposed_seconds, const std::vector<double>& rank_seconds) {
  Counters& all = counters();
  const Lock lock(all.mutex);
  StepCount& steps = all.steps;
  ++steps.steps;
  steps.bytes += bytes;
  steps.exposed_seconds += exposed_seconds;
  steps.last_exposed_seconds = exposed_seconds;
  steps.rank_seconds.resize(std::max(steps.rank_seconds.size(), rank_seconds.size()));
  steps.slowest.resize(steps.rank_seconds.size());
  for (std::size_t rank = 0; rank < rank_seconds.size(); ++rank) steps.rank_seconds[rank] += rank_seconds[rank];
  const auto slowest = std::max_element(rank_seconds.begin(), rank_seconds.end());
  if (slowest != rank_seconds.end() && *slowest > 0) {
    ++steps.slowest[static_cast<std::size_t>(slowest - rank_seconds.begin())];
  }
}

void trace_step(const std::string& group, std::uint64_t number, TimePoint last_end, TimePoint begin, TimePoint end) {
  if (!trace::is_on()) return;
  const trace::Arguments step{{"step", std::to_string(number)}, {"group", trace::quoted(group)}};
  if (number != 0) trace::span("step", "step", "compute", last_end, begin, step);
  trace::span("step", "step", "exposed communication", begin, end, step);
}

void count_reduced_step(const ReducedStep& step) {
  const double exposed = std::chrono::duration<double>(step.end - step.begin).count();
  count_exposed(exposed);
  count_step(step.bytes, exposed, step.rank_seconds);
  trace_step(step.group, step.number, step.last_end, step.begin, step.end);
}

void count_input(TimePoint begin, TimePoint end) {
  {
    Counters& all = counters();
    const Lock lock(all.mutex);
    all.steps.input_seconds += std::chrono::duration<double>(end - begin).count();
  }
  if (trace::is_on()) trace::span("step", "input", "wait for data", begin, end);
}

std::vector<OperationCount> operation_counts() {
  Counters& all = counters();
  const Lock lock(all.mutex);
  std::vector<OperationCount> result;
  for (const auto& [key, count] : all.operations) {
    result.push_back(count);
    result.back().operation = key.first;
    result.back().algorithm = key.second;
  }
  return result;
}

StepCount step_count() {
  Counters& all = counters();
  const Lock lock(all.mutex);
  return all.steps;
}

}  // namespace smdp
