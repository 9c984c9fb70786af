#include "fusion/fusion_plan.h"

#include <algorithm>
#include <numeric>

#include "collectives/chunks.h"
#include "common/log.h"
#include "fusion/explanation.h"
#include "fusion/registration.h"
#include "fusion/whole_gradients.h"

namespace smdp {

FusionPlan::FusionPlan(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options,
                       bool tries_streams)
    : group_(group), gradients_(gradients), options_(options), order_(gradients.size()) {
  measured_ = measure(group_, tries_streams);
  choose_sizes();
  std::iota(order_.rbegin(), order_.rend(), std::size_t{0});
  lay_out();
}

void FusionPlan::choose_sizes() {
  const std::size_t hosts = group_.hosts().size();
  const std::size_t lanes = lanes_of(group_.hosts());
  const cost::Measured figures = has_fixed_buffers(options_.compression) ? cost::Measured{} : measured_;
  sizes_ = cost::fusion_sizes(figures, hosts, lanes, options_.buffer_bytes);
  exchange_ = cost::exchange_sizes(measured_, hosts, lanes);
}

void FusionPlan::lay_out() {
  layout_ = smdp::lay_out(gradients_, order_, sizes_, std::max(options_.buffer_bytes, sizes_.usual));
  if (options_.shards != ShardScope::kNone) {
    const std::size_t hosts = options_.shards == ShardScope::kWorld ? group_.hosts().size() : 1;
    give_to_owners(layout_, gradients_, lanes_of(group_.hosts()) * hosts);
  }
  if (is_logged(LogLevel::kDebug)) log(LogLevel::kDebug, explain());
}

void FusionPlan::reorder(const std::vector<std::uint32_t>& order) {
  order_.assign(order.begin(), order.end());
  lay_out();
}

void FusionPlan::look_again() {
  if (group_.size() > 1) second_look_.emplace(group_, measured_);
}

void FusionPlan::tell(StepNotes& notes) {
  if (!second_look_ || group_.rank() != 0) return;
  const std::optional<Shortened> by = second_look_->news();
  if (!by) return;
  notes.put(StepNotes::kShorterLatency, 0, by->latency);
  notes.put(StepNotes::kShorterTransfer, 0, by->transfer);
  notes.put(StepNotes::kShorterSum, 0, by->sum);
}

void FusionPlan::begin_look(std::uint64_t step) {
  if (second_look_ && SecondLook::is_due(step)) second_look_->begin(group_);
}

void FusionPlan::end_look() {
  if (last_sample()) second_look_->end();
}

bool FusionPlan::take_news(const StepNotes& notes) {
  const auto told = [&notes](StepNotes::Told what) { return notes.told(what).front(); };
  const Shortened by{told(StepNotes::kShorterLatency), told(StepNotes::kShorterTransfer), told(StepNotes::kShorterSum)};
  if (by.latency == 0) return false;
  const cost::FusionSizes before = sizes_;
  measured_ = corrected(measured_, by);
  choose_sizes();
  if (sizes_.usual == before.usual && sizes_.alone == before.alone && sizes_.smallest == before.smallest) return false;
  if (is_logged(LogLevel::kInfo) && group_.rank() == 0) {
    log(LogLevel::kInfo, group_.name() +
                             ": the network measurement before the first step was disturbed. With new measurements, "
                             "fusion buffers are about " +
                             std::to_string(sizes_.usual >> 10) + " KiB.");
  }
  lay_out();
  return true;
}

std::string FusionPlan::explain() const {
  const auto ranks = static_cast<std::size_t>(group_.size());
  // As StepBatch lists it.
  const std::size_t batch_bytes = layout_.bytes() + gradients_.size() + StepNotes::size_of_told(ranks);
  return smdp::explain(
      layout_, {options_.compression, options_.buffer_bytes, group_.hosts().size(), lanes_of(group_.hosts()), ranks,
                parse_algorithm(group_.batch_algorithm(batch_bytes)), measured_, sizes_, exchange_});
}

}  // namespace smdp
