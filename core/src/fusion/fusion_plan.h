// How the gradients of one reducer travel: in which fusion buffers, cut between hosts how, and by which measurement.
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
  // Collective. All three live longer, and gradients and options are the same on all ranks.
  FusionPlan(Group& group, const std::vector<Gradient>& gradients, const GradientReducerOptions& options,
             bool tries_streams);
  FusionPlan(const FusionPlan&) = delete;
  FusionPlan& operator=(const FusionPlan&) = delete;

  const Layout& layout() const { return layout_; }
  const Place& place(std::size_t gradient) const { return layout_.places[gradient]; }
  const cost::ExchangeSizes& exchange() const { return exchange_; }
  std::string explain() const;

  // Lays gradients out in the order in which backward has produced them.
  void reorder(const std::vector<std::uint32_t>& order);

  // Collective: looks again, after some steps, at what was measured.
  void look_again();
  // finish() of a step: tells what the last look has found, and takes another one where it is due.
  void tell(StepNotes& notes);
  void begin_look(std::uint64_t step);
  // The last operation of a step that looks; null in others.
  Group::Handle last_sample() const { return second_look_ ? second_look_->last() : nullptr; }
  // Once that has ended.
  void end_look();
  // Takes what was told in the step before. True: all is laid out anew, as other sizes are better.
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
