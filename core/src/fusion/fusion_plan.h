// How the gradients of one reducer travel: their fusion buffers, how these are cut between hosts, and the measurement
// behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost/exchange_cost.h"
#include "cost/fusion_cost.h"
#include "fusion/layout.h"
#include "fusion/second_look.h"
#include "fusion/step_notes.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

class FusionPlan {
 public:
  // Collective. All three must outlive the plan, and gradients and options must be the same on all ranks.
  FusionPlan(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options,
             bool tries_streams);
  FusionPlan(const FusionPlan&) = delete;
  FusionPlan& operator=(const FusionPlan&) = delete;

  const Layout& layout() const { return layout_; }
  const Place& place(std::size_t gradient) const { return layout_.places[gradient]; }
  const cost::ExchangeSizes& exchange() const { return exchange_; }
  const cost::Measured& measured() const { return measured_; }
  std::string explain() const;

  // Lays out gradients in the order in which backward produced them.
  void reorder(const std::vector<std::uint32_t>& order);

  // Collective: repeats the measurement after some steps.
  void look_again();
  // Called by finish() of a step: reports what the last look found, and starts another one if it is due.
  void tell(StepNotes& notes);
  void begin_look(std::uint64_t step);
  // Returns the last operation of a step that takes samples; null in other steps.
  Group::Handle last_sample() const { return second_look_ ? second_look_->last() : nullptr; }
  // Called once that operation has ended.
  void end_look();
  // Takes what was reported in the previous step. Returns whether everything was laid out anew because other sizes are
  // better.
  bool take_news(const StepNotes& notes);

 private:
  void choose_sizes();
  void lay_out();

  Group& group_;
  const std::vector<Gradient>& gradients_;
  const GradientReducerOptions& options_;
  cost::Measured measured_;
  cost::FusionSizes sizes_{};
  cost::ExchangeSizes exchange_{};
  std::vector<std::size_t> order_;  // of gradients
  Layout layout_;
  std::optional<SecondLook> second_look_;
};

}  // namespace smdp
