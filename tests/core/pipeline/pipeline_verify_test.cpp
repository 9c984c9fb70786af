// Every schedule passes all checks; the published negative examples fail the one that is meant for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pipeline/schedules.h"
#include "smdp/error.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

std::string broken(const Schedule& schedule, const VerifyOptions& options = {}) {
  const auto found = verify(schedule, options);
  if (!found) return "none";
  EXPECT_NE(found->message.find("rank " + std::to_string(found->rank)), std::string::npos);
  EXPECT_NE(found->message.find(found->action), std::string::npos);
  EXPECT_NE(found->message.find("\n  rank"), std::string::npos) << "the rows around are missing: " << found->message;
  return std::string(name_of(found->check));
}

VerifyOptions only(Check check, Transport transport = Transport::kRendezvous) {
  VerifyOptions options;
  options.checks = {check};
  options.transports = {transport};
  return options;
}

TEST(Verify, EveryScheduleIsValidBareAndLowered) {
  for (const ScheduleInfo& info : schedule_names()) {
    const std::string name(info.name);
    for (const int v : virtual_stages_of(name)) {
      for (int p = 1; p <= 7; ++p) {
        for (const int m : {1, 2, 3, 4, 5, 7, 11, 16}) {
          if (!is_possible(name, p, m)) continue;
          SCOPED_TRACE(name + " p " + std::to_string(p) + " m " + std::to_string(m) + " v " + std::to_string(v));
          const Schedule schedule = make(name, p, m, v);
          const auto found = verify(schedule);
          ASSERT_FALSE(found) << found->message;
          Schedule lowered = add_unshard_reshard(schedule);
          lowered = add_offload(lowered, {0}, 2);
          lowered = add_reduce_grad(lowered);
          if (lowered.stages() > 1) lowered = add_tied_reductions(lowered, {{0, lowered.stages() - 1}});
          lowered = add_send_recv(add_reduce_norm(lowered));
          const auto later = verify(lowered);
          ASSERT_FALSE(later) << later->message;
          Costs costs = of_full_stage(schedule);
          costs.hop = 0.25;
          EXPECT_NEAR(simulate(lowered, costs).makespan, simulate(schedule, costs).makespan, 1e-9);
        }
      }
    }
  }
}

TEST(Verify, SkipEdgesTravelStraightToTheirConsumer) {
  for (const char* name : {"1f1b", "gpipe", "interleaved_1f1b", "zb_1p"}) {
    Schedule schedule = make(name, 4, 6);
    schedule.skip_edges = {{0, 2}, {0, 3}, {1, 3}};
    EXPECT_FALSE(verify(schedule)) << name;
    const Schedule lowered = add_send_recv(schedule);
    const auto found = verify(lowered);
    EXPECT_FALSE(found) << found->message;
    EXPECT_NE(to_csv(lowered).find("0SEND_F0>3"), std::string::npos);
    EXPECT_EQ(from_csv(to_csv(lowered)).skip_edges, schedule.skip_edges);
  }
}

TEST(Verify, MoreRanksThanMicrobatchesAndAnEmptyStage) {
  Schedule schedule = make("1f1b", 8, 3);
  EXPECT_EQ(broken(schedule), "none");
  schedule.rows[5].clear();
  EXPECT_EQ(broken(schedule), "empty_stages");
}

// The last rank of torch 2.13's own order table for p 4, m 8 runs F1 to F8 and no F0.
TEST(Verify, TorchsOrderTableOf1F1B) {
  Schedule schedule = make("1f1b", 4, 8);
  auto& row = schedule.rows.back();
  for (Action& action : row) {
    if (action.kind == ActionKind::kForward) ++action.microbatch;
  }
  EXPECT_EQ(broken(schedule), "completeness");
  const auto found = verify(schedule);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->action, "3F8");
  EXPECT_EQ(found->microbatch, 8);
}

TEST(Verify, LocalOrder) {
  Schedule schedule = make("zb_1p", 3, 4);
  auto& row = schedule.rows.back();
  std::swap(row[0], row[1]);
  EXPECT_EQ(broken(schedule), "local_order");
  schedule = add_send_recv(make("1f1b", 3, 4));
  std::swap(schedule.rows[1][0], schedule.rows[1][1]);  // F before its RECV_F
  EXPECT_EQ(broken(schedule), "local_order");
}

// The sum of floating-point gradients is that of one process only in its order.
TEST(Verify, WeightGradientsAreAddedInTheOrderOfMicrobatches) {
  const std::string rule =
      "a stage adds them in ascending order, so that floating-point sums equal those of a single process";
  const auto expect = [&](const Schedule& schedule, const char* action, int last, int microbatch) {
    const auto found = verify(schedule);
    ASSERT_TRUE(found) << action;
    EXPECT_EQ(name_of(found->check), "local_order");
    EXPECT_EQ(found->action, action);
    const std::string what = "microbatch " + std::to_string(last) + " has added its weight gradient to stage " +
                             std::to_string(found->stage) + " before microbatch " + std::to_string(microbatch) + "; ";
    EXPECT_NE(found->message.find(what + rule), std::string::npos) << found->message;
  };
  expect(from_csv("0F0,0F1,0F2,0B0,0B2,0B1"), "0B1", 2, 1);
  expect(from_csv("0F0,0F1,0I0,0I1,0W1,0W0"), "0W0", 1, 0);
  expect(from_csv("0F0,0F1,0I0,0B1,0W0"), "0W0", 1, 0);
  expect(from_csv("0F0,0F1,0B1,(0F2;0B0)OVERLAP_F_B,0B2"), "(0F2;0B0)OVERLAP_F_B", 1, 0);
  // Input gradients are added to nothing, and stages have sums of their own.
  EXPECT_EQ(broken(from_csv("0F0,0F1,0I1,0I0,0W0,0W1")), "none");
  EXPECT_EQ(broken(from_csv("0F0,1F0,1B0,0F1,1F1,1B1,0B0,0B1")), "none");
  // torch's looped BFS: the last microbatch comes back first.
  expect(from_csv("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"), "0B0", 1, 0);
}

TEST(Verify, CyclesOverRanksArePrinted) {
  // Rank 1 wants the second forward before it gives the first gradient, rank 0 the other way round.
  Schedule schedule = make("1f1b", 2, 2);
  schedule.rows[0] = {parse_action("0F0"), parse_action("0B0"), parse_action("0F1"), parse_action("0B1")};
  schedule.rows[1] = {parse_action("1F0"), parse_action("1F1"), parse_action("1B0"), parse_action("1B1")};
  EXPECT_EQ(broken(schedule), "acyclicity");
  const auto found = verify(schedule);
  EXPECT_NE(found->message.find("rank 0 at 0B0 waits for"), std::string::npos) << found->message;
  EXPECT_NE(found->message.find("rank 1 at 1F1 waits for 0F1"), std::string::npos) << found->message;
}

TEST(Verify, TiedReductionsAreDependenciesToo) {
  Schedule schedule = add_tied_reductions(make("1f1b", 2, 2), {{0, 1}});
  auto& row = schedule.rows[1];
  std::rotate(row.begin(), row.end() - 1, row.end());
  const auto found = verify(schedule, only(Check::kAcyclicity));
  ASSERT_TRUE(found);
  EXPECT_NE(found->message.find("rank 0 at 0B0 waits for 1B0"), std::string::npos) << found->message;
  EXPECT_NE(found->message.find("rank 1 at 1REDUCE_TIED0 waits for 0REDUCE_TIED0"), std::string::npos);
}

TEST(Verify, GradientsAreReducedOnceTheyAreWhole) {
  EXPECT_EQ(broken(from_csv("0REDUCE_GRAD,0F0,0B0")), "local_order");
  EXPECT_EQ(broken(from_csv("0F0,0B0,0F1,0REDUCE_GRAD,0B1")), "local_order");
  EXPECT_EQ(broken(from_csv("0F0,0I0,0REDUCE_GRAD,0W0")), "local_order");
  EXPECT_EQ(broken(from_csv("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD")), "completeness");
  EXPECT_EQ(broken(from_csv("0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n")), "completeness");
  EXPECT_EQ(broken(from_csv("0F0,0REDUCE_GRAD")), "local_order");  // an evaluation has none
  EXPECT_EQ(broken(from_csv("0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n")), "none");
}

TEST(Verify, TiedGradientsAreReducedOnceByEveryMember) {
  const Schedule bare = make("zb_1p", 3, 4);
  const Schedule good = add_send_recv(add_tied_reductions(bare, {{0, 2}}));
  EXPECT_EQ(broken(good), "none");
  Schedule bad = bare;
  bad.tied = {{0, 2}};
  EXPECT_EQ(broken(bad), "none") << "nothing is lowered yet";
  EXPECT_EQ(broken(add_send_recv(bad)), "completeness");
  bad = good;
  for (auto& row : bad.rows) {
    std::erase_if(row, [](const Action& action) { return action.kind == ActionKind::kReduceTied; });
  }
  EXPECT_EQ(broken(bad), "completeness");
  bad = good;
  for (auto& row : bad.rows) row.insert(row.end(), row.back());
  EXPECT_EQ(broken(bad), "completeness");
  bad = good;
  for (auto* row : {&bad.rows[0], &bad.rows[2]}) std::rotate(row->begin(), row->end() - 1, row->end());
  EXPECT_EQ(broken(bad), "local_order");
  bad = good;
  bad.rows[1].push_back({.kind = ActionKind::kReduceTied, .stage = 1, .other_stage = 0});
  EXPECT_EQ(broken(bad), "completeness");
}

TEST(Verify, PassesRunOnce) {
  const Schedule lowered =
      add_tied_reductions(add_reduce_grad(add_offload(add_unshard_reshard(make("gpipe", 2, 6)), {0}, 1)), {{0, 1}});
  EXPECT_THROW(add_unshard_reshard(lowered), InvalidArgument);
  EXPECT_THROW(add_offload(lowered, {1}), InvalidArgument);
  EXPECT_THROW(add_reduce_grad(lowered), InvalidArgument);
  EXPECT_THROW(add_tied_reductions(lowered, {{0, 1}}), InvalidArgument);
  EXPECT_THROW(add_reduce_norm(add_reduce_norm(lowered)), InvalidArgument);
  EXPECT_THROW(add_send_recv(add_send_recv(lowered)), InvalidArgument);
}

TEST(Verify, TheNormIsReducedOnceByEveryRankAfterAllElse) {
  const auto is_norm = [](const Action& action) { return action.kind == ActionKind::kReduceNorm; };
  Schedule bare = make("zb_1p", 3, 4);
  bare.rows.emplace_back();  // a rank without a stage
  const Schedule good = add_send_recv(add_reduce_norm(add_tied_reductions(add_reduce_grad(bare), {{0, 2}})));
  EXPECT_EQ(broken(good), "none");
  EXPECT_EQ(good.rows[3].size(), 1U);
  EXPECT_EQ(to_text(good.rows[1].back()), "REDUCE_NORM");
  EXPECT_EQ(from_json(to_json(good)), good);
  EXPECT_EQ(from_csv(to_csv(good)).rows, good.rows);
  EXPECT_EQ(add_reduce_norm(make("forward_only", 2, 2)), make("forward_only", 2, 2));
  EXPECT_EQ(broken(from_csv("0F0,REDUCE_NORM")), "local_order");  // an evaluation has none
  for (const char* wrong : {"0REDUCE_NORM", "REDUCE_NORM0", "REDUCE_NORM:bool[]", "F0"}) {
    EXPECT_THROW(from_csv(std::string("0F0,") + wrong), InvalidArgument) << wrong;
  }
  Costs costs = uniform_costs(3);
  const double before = simulate(good, costs).makespan;
  costs.reduce_norm = 0.5;
  EXPECT_EQ(simulate(good, costs).makespan, before + 0.5);

  for (std::size_t rank = 0; rank < 4; ++rank) {
    Schedule bad = good;
    std::erase_if(bad.rows[rank], is_norm);
    EXPECT_EQ(broken(bad), "completeness") << rank;
    EXPECT_EQ(verify(bad)->rank, static_cast<int>(rank));
    EXPECT_EQ(broken(bad, only(Check::kCollectiveOrder)), "collective_order") << rank;
    bad = good;
    bad.rows[rank].push_back(bad.rows[rank].back());
    EXPECT_EQ(broken(bad), "completeness") << rank;
    EXPECT_EQ(broken(bad, only(Check::kCollectiveOrder)), "collective_order") << rank;
  }
  // Before the last weight gradient; before a reduction.
  Schedule bad = add_reduce_norm(bare);
  std::swap(bad.rows[1].back(), bad.rows[1][bad.rows[1].size() - 2]);
  EXPECT_EQ(broken(bad), "local_order");
  bad = good;
  std::swap(bad.rows[1].back(), bad.rows[1][bad.rows[1].size() - 2]);
  EXPECT_EQ(broken(bad), "local_order");
  EXPECT_NE(verify(bad)->message.find("1REDUCE_GRAD: the gradients' norm has already been reduced"), std::string::npos)
      << verify(bad)->message;
  // In the other order than the rank at the other end of a tied group: each waits for the other.
  bad = good;
  std::swap(bad.rows[2].back(), bad.rows[2][bad.rows[2].size() - 2]);
  EXPECT_EQ(broken(bad), "local_order");
  EXPECT_EQ(broken(bad, only(Check::kCollectiveOrder)), "collective_order");
  EXPECT_EQ(broken(bad, only(Check::kDeadlock)), "deadlock");
  EXPECT_EQ(broken(bad, only(Check::kAcyclicity)), "acyclicity");
  EXPECT_NE(verify(bad, only(Check::kAcyclicity))->message.find("rank 2 at REDUCE_NORM waits for REDUCE_NORM"),
            std::string::npos)
      << verify(bad, only(Check::kAcyclicity))->message;
  // A replica that clips, and one that does not.
  VerifyOptions options;
  options.replicas = {good};
  EXPECT_EQ(broken(good, options), "none");
  for (auto& row : options.replicas[0].rows) std::erase_if(row, is_norm);
  EXPECT_EQ(broken(good, options), "collective_order");
}

// Rank 1 enters the reduction before it sends what rank 0 must have to come there.
TEST(Verify, TiedReductionsHoldTransfersUp) {
  const Schedule schedule = from_csv(
      "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_TIED0\n"
      "1RECV_F0,1F0,1B0,1REDUCE_TIED0,1SEND_B0\n");
  EXPECT_EQ(broken(schedule), "deadlock");
  for (const Transport transport : {Transport::kRendezvous, Transport::kBuffered, Transport::kSingleStream}) {
    EXPECT_EQ(broken(schedule, only(Check::kDeadlock, transport)), "deadlock");
  }
  EXPECT_NE(verify(schedule)->message.find("rank 1 at 1REDUCE_TIED0"), std::string::npos);
}

TEST(Verify, MatchingNamesPeersAndOrder) {
  const Schedule good = add_send_recv(make("1f1b", 4, 6));
  Schedule bad = good;
  for (Action& action : bad.rows[0]) {
    if (action.kind != ActionKind::kSendForward) continue;
    action.peer = 3;
    break;
  }
  EXPECT_EQ(broken(bad), "matching");
  bad = good;
  std::vector<std::size_t> sends;
  for (std::size_t i = 0; i < bad.rows[0].size(); ++i) {
    if (bad.rows[0][i].kind == ActionKind::kSendForward) sends.push_back(i);
  }
  std::swap(bad.rows[0][sends[0]], bad.rows[0][sends[1]]);
  EXPECT_EQ(broken(bad, only(Check::kMatching)), "matching");
}

Action& transfer_in(Schedule& schedule, std::size_t rank, const char* text) {
  for (Action& action : schedule.rows[rank]) {
    if (to_text(action) == text) return action;
  }
  throw InvalidArgument(text);
}

TEST(Verify, MatchingComparesDtypesAndShapes) {
  Schedule bare = make("1f1b", 4, 6);
  bare.skip_edges = {{0, 2}};
  const std::string usual = "float32[8x512x768]";
  const Schedule good = add_send_recv(bare, {{0, 1, usual}, {0, 2, usual + "+int64[8x512]"}, {2, 3, "bool[]"}});
  EXPECT_EQ(broken(good), "none");
  EXPECT_EQ(good.payloads.size(), 3U);
  EXPECT_EQ(from_json(to_json(good)), good);
  EXPECT_EQ(from_csv(to_csv(good)).payloads, good.payloads);
  EXPECT_NE(to_csv(good).find("0SEND_F1:float32[8x512x768],"), std::string::npos);
  EXPECT_NE(to_csv(good).find("0RECV_B1>2:float32[8x512x768]+int64[8x512],"), std::string::npos);
  EXPECT_EQ(to_csv(add_send_recv(bare)).find(':'), std::string::npos) << "torch reads what says nothing";

  struct Wrong {
    std::size_t rank;
    const char* transfer;
    const char* payload;  // "": it says nothing
    const char* message;
  };
  for (const Wrong& wrong : {
           Wrong{1, "1RECV_F2", "float32[8x512x512]",
                 "it receives float32[8x512x512] where 0SEND_F2 of rank 0 sends float32[8x512x768]: the shapes differ"},
           Wrong{
               1, "1RECV_F2", "bfloat16[8x512x768]",
               "it receives bfloat16[8x512x768] where 0SEND_F2 of rank 0 sends float32[8x512x768]: the dtypes differ"},
           Wrong{0, "0SEND_F3", "float32[8x768]",
                 "it receives float32[8x512x768] where 0SEND_F3 of rank 0 sends float32[8x768]: the shapes differ"},
           Wrong{1, "1SEND_B0", "float16[8x512x768]", "sends float16[8x512x768]: the dtypes differ"},
           Wrong{0, "0RECV_B1>2", "float32[8x512x768]+int32[8x512]", "the dtypes of tensor 1 differ"},
           Wrong{2, "2RECV_F1>0", "float32[8x512x768]", "2 tensors are sent and 1 received"},
           Wrong{3, "3RECV_F4", "bool[1]", "it receives bool[1] where 2SEND_F4 of rank 2 sends bool[]: the shapes"},
           Wrong{3, "3RECV_F4", "", "it receives an unknown payload where 2SEND_F4 of rank 2 sends bool[]"},
           Wrong{1, "1SEND_F0", "bool[]", "the payload of the receive is unknown"},
       }) {
    Schedule bad = good;
    Action& action = transfer_in(bad, wrong.rank, wrong.transfer);
    action.payload = -1;
    if (*wrong.payload != '\0') {
      action.payload = static_cast<std::int16_t>(bad.payloads.size());
      bad.payloads.emplace_back(wrong.payload);
    }
    EXPECT_EQ(broken(bad), "matching") << wrong.transfer;
    EXPECT_NE(verify(bad)->message.find(wrong.message), std::string::npos) << verify(bad)->message;
    EXPECT_NE(from_json(to_json(bad)), good);
    EXPECT_EQ(from_json(to_json(bad)), bad);
  }
  // The same by another number is the same.
  Schedule same = good;
  same.payloads.push_back(usual);
  transfer_in(same, 0, "0SEND_F3").payload = 3;
  EXPECT_EQ(broken(same), "none");
  EXPECT_EQ(same, good);
}

TEST(Lowering, PayloadsAreTextOfAnEdge) {
  const Schedule schedule = make("1f1b", 3, 2);
  for (const char* wrong : {"", "float32", "float32[8,512]", "[8]", "float32[8x]", "float32[x8]", "float32[-1]",
                            "float32[08]", "float32[8]+", "float32[8]int8[8]", "float32[99999999999999999999]",
                            "Float32[8]", "float32]8[", "float32[[8]]", "float32[8]@1"}) {
    EXPECT_THROW(add_send_recv(schedule, {{0, 1, wrong}}), InvalidArgument) << wrong;
    EXPECT_THROW(from_csv(std::string("0F0,0SEND_F0:") + wrong), InvalidArgument) << wrong;
  }
  for (const auto& [source, target] : {std::pair(0, 2), {1, 0}, {-1, 0}, {2, 3}}) {
    EXPECT_THROW(add_send_recv(schedule, {{source, target, "bool[]"}}), InvalidArgument) << source << " " << target;
  }
  EXPECT_THROW(add_send_recv(schedule, {{0, 1, "bool[]"}, {0, 1, "bool[]"}}), InvalidArgument);
  EXPECT_THROW(from_csv("0F0:bool[]"), InvalidArgument);
}

// Both traces as published, filled up to whole forwards or steps: stages 0 and 2 on rank 0, 1 and 3 on rank 1.
Schedule trace_a() {
  return from_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n");
}

Schedule trace_b() {
  return from_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,0F2,0SEND_F2,2RECV_B0,2B0,2SEND_B0,"
      "2RECV_F2,2F2,2SEND_F2,2RECV_B1,2B1,2SEND_B1,2RECV_B2,2B2,2SEND_B2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1RECV_F1,1SEND_F0,1F1,1SEND_F1,3RECV_F0,3F0,3B0,3RECV_F1,3SEND_B0,3F1,3B1,1RECV_F2,3SEND_B1,1F2,"
      "1RECV_B0,1SEND_F2,1B0,3RECV_F2,3F2,3B2,1RECV_B1,3SEND_B2,1B1,1RECV_B2,1B2,1SEND_B0,1SEND_B1,1SEND_B2\n");
}

TEST(Verify, PublishedDeadlocks) {
  EXPECT_EQ(broken(trace_a(), only(Check::kDeadlock, Transport::kRendezvous)), "deadlock");
  EXPECT_EQ(broken(trace_a(), only(Check::kDeadlock, Transport::kSingleStream)), "deadlock");
  EXPECT_EQ(broken(trace_a()), "deadlock");
  EXPECT_EQ(broken(trace_b(), only(Check::kDeadlock, Transport::kRendezvous)), "deadlock");
  EXPECT_EQ(broken(trace_b(), only(Check::kDeadlock, Transport::kSingleStream)), "deadlock");
  const auto found = verify(trace_a(), only(Check::kDeadlock));
  EXPECT_NE(found->message.find("rank 0 at 0SEND_F1, rank 1 at 1SEND_F0"), std::string::npos) << found->message;
  const auto other = verify(trace_b(), only(Check::kDeadlock, Transport::kSingleStream));
  EXPECT_NE(other->message.find("NCCL"), std::string::npos) << other->message;
}

// Shapes exchanged in one fixed order: to the previous rank, from it, to the next one, from it.
TEST(Verify, ExchangeInAFixedOrder) {
  Schedule schedule = make("1f1b", 4, 2);
  for (auto& row : schedule.rows) row.clear();
  const auto add = [&](ActionKind kind, int rank, int other, int microbatch) {
    if (other < 0 || other > 3) return;
    schedule.rows[static_cast<std::size_t>(rank)].push_back(
        {.kind = kind, .stage = rank, .microbatch = microbatch, .other_stage = other, .peer = other});
  };
  for (int rank = 0; rank < 4; ++rank) {
    add(ActionKind::kSendBackward, rank, rank - 1, 0);
    add(ActionKind::kRecvForward, rank, rank - 1, 1);
    add(ActionKind::kSendForward, rank, rank + 1, 1);
    add(ActionKind::kRecvBackward, rank, rank + 1, 0);
  }
  EXPECT_EQ(broken(schedule, only(Check::kDeadlock, Transport::kRendezvous)), "deadlock");
  EXPECT_EQ(broken(schedule, only(Check::kDeadlock, Transport::kSingleStream)), "deadlock");
  EXPECT_EQ(broken(schedule, only(Check::kDeadlock, Transport::kBuffered)), "none");
}

// An empty stage takes no time and keeps nothing; a rank may have only that.
TEST(Verify, StagesWithoutLayersAreLegal) {
  for (const char* name : {"1f1b", "zb_1p", "auto", "smp_interleaved"}) {
    GenerateOptions options;
    options.stages = 4;
    options.microbatches = 6;
    Costs costs = uniform_costs(4);
    costs.forward[2] = costs.backward_input[2] = costs.backward_weight[2] = costs.activation_bytes[2] = 0;
    costs.forward[3] = 2.5;
    options.costs = costs;
    const Schedule schedule = generate(name, options);
    EXPECT_EQ(broken(add_send_recv(schedule)), "none") << name;
    EXPECT_EQ(simulate(schedule, costs).peak_activations[2], 0) << name;
    EXPECT_GE(simulate(schedule, costs).makespan, lower_bounds(schedule, costs).makespan * (1 - 1e-12)) << name;
  }
}

TEST(Verify, BuffersHelpWhereTheyAre) {
  VerifyOptions options = only(Check::kDeadlock, Transport::kBuffered);
  options.buffers = 1;
  EXPECT_FALSE(verify(trace_a(), options));
  // Rank 0 sends four values before it receives one: rank 1 can be one ahead of what it has handed over, or two.
  const Schedule schedule = from_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,2RECV_F0,2F0,2RECV_F1,2F1,2RECV_F2,2F2,2RECV_F3,2F3\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_F2,1F2,1SEND_F2,1RECV_F3,1F3,1SEND_F3\n");
  options.buffers = 1;
  EXPECT_EQ(broken(schedule, options), "deadlock");
  options.buffers = 2;
  EXPECT_EQ(broken(schedule, options), "none");
}

TEST(Verify, MemoryCap) {
  const Schedule schedule = make("1f1b", 4, 8);
  VerifyOptions options;
  options.memory_cap = 4;
  EXPECT_EQ(broken(schedule, options), "none");
  options.memory_cap = 4 - 1e-9;
  EXPECT_EQ(broken(schedule, options), "memory_cap");
  EXPECT_EQ(verify(schedule, options)->action, "0F3");
  options.memory_cap.reset();
  options.active_microbatches = 3;
  EXPECT_EQ(broken(schedule, options), "memory_cap");
  // What is received takes room, too.
  Costs costs = uniform_costs(4);
  costs.receive_bytes = {1, 1, 1, 1};
  options = {};
  options.costs = costs;
  options.memory_cap = 4;
  EXPECT_EQ(broken(add_send_recv(schedule), options), "memory_cap");
}

TEST(Verify, OffloadLowersThePeak) {
  const Schedule schedule = make("gpipe", 2, 16);
  const Costs costs = uniform_costs(2);
  const Simulation without = simulate(schedule, costs);
  const Simulation with = simulate(add_offload(schedule, {0, 1}, 2), costs);
  EXPECT_EQ(without.peak_activations[0], 16);
  EXPECT_LE(with.peak_activations[0], 5);
}

TEST(Verify, CollectiveOrder) {
  const Schedule schedule = add_tied_reductions(make("1f1b", 3, 4), {{0, 2}, {0, 1, 2}});
  EXPECT_EQ(broken(schedule), "none");
  Schedule bad = schedule;
  std::swap(bad.rows[0][bad.rows[0].size() - 1], bad.rows[0][bad.rows[0].size() - 2]);
  EXPECT_EQ(broken(bad, only(Check::kCollectiveOrder)), "collective_order");
  bad = schedule;
  bad.rows[2].pop_back();
  EXPECT_EQ(broken(bad, only(Check::kCollectiveOrder)), "collective_order");
  // A replica on which a rank has no such layer skips its reduction.
  VerifyOptions options;
  const Schedule ours = add_reduce_grad(make("1f1b", 3, 4));
  options.replicas = {ours};
  EXPECT_EQ(broken(ours, options), "none");
  options.replicas[0].rows[1].pop_back();
  EXPECT_EQ(broken(ours, options), "collective_order");
  for (const int ranks : {2, 4}) {
    options.replicas = {add_reduce_grad(make("1f1b", ranks, 4))};
    EXPECT_THROW(verify(ours, options), InvalidArgument);
  }
}

TEST(Verify, Placement) {
  Schedule schedule = make("1f1b", 3, 4);
  std::swap(schedule.rows[0], schedule.rows[1]);
  EXPECT_EQ(broken(schedule), "placement");
  schedule = add_unshard_reshard(make("interleaved_1f1b", 2, 4, 4), 2);
  EXPECT_EQ(broken(schedule), "none");
  for (std::size_t i = 0; i < schedule.rows[0].size(); ++i) {
    if (schedule.rows[0][i].kind != ActionKind::kUnshard) continue;
    schedule.rows[0].erase(schedule.rows[0].begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  EXPECT_EQ(broken(schedule), "placement");
}

TEST(Verify, TrainingAndEvaluationAlternate) {
  VerifyOptions options;
  options.alternates = {make("forward_only", 4, 8)};
  const Schedule train = add_send_recv(make("1f1b", 4, 8));
  EXPECT_EQ(broken(train, options), "none");
  // Evaluation that stops before it has used what it received.
  Schedule eval = add_send_recv(make("forward_only", 4, 8));
  eval.rows[3].pop_back();
  options.alternates = {eval};
  EXPECT_EQ(broken(train, options), "alternation");
  options.alternates = {make("forward_only", 4, 8, 2)};
  EXPECT_EQ(broken(train, options), "alternation");
  Schedule sharded = add_unshard_reshard(make("1f1b", 2, 4));
  sharded.rows[0].pop_back();
  EXPECT_EQ(broken(sharded), "alternation");
}

TEST(Verify, EvaluationBesideAV) {
  for (const char* name : {"zb_v", "v_half", "dualpipe_v"}) {
    GenerateOptions options;
    options.stages = 4;
    options.microbatches = 9;
    options.virtual_stages = 2;
    options.placement = Placement::kV;
    const Schedule eval = generate("forward_only", options);
    EXPECT_EQ(eval.rank_of, place(Placement::kV, 4, 2));
    EXPECT_EQ(broken(add_send_recv(eval)), "none");
    VerifyOptions checks;
    checks.alternates = {eval};
    EXPECT_EQ(broken(add_send_recv(generate(name, options)), checks), "none") << name;
    options.placement = Placement::kLoop;
    EXPECT_THROW(generate(name, options), InvalidArgument);
  }
}

// Ranks that come again, uneven numbers of stages per rank, a rank without one.
const std::vector<std::vector<int>> kPlacements{{0, 1, 0},       {1, 0},          {0, 1, 0, 1, 0}, {0, 1, 2, 0, 1},
                                                {2, 0, 1, 0, 2}, {0, 2, 1, 2, 0}, {1, 0, 1},       {0, 2, 0}};

TEST(Schedules, TakeAnyPlacementWhereTheirEntrySaysSo) {
  for (const ScheduleInfo& info : schedule_names()) {
    if (!info.takes_any_placement) continue;
    for (const std::vector<int>& rank_of : kPlacements) {
      for (const int microbatches : {1, 2, 5, 8}) {
        GenerateOptions options;
        options.stages = 1 + *std::max_element(rank_of.begin(), rank_of.end());
        options.microbatches = microbatches;
        options.rank_of = rank_of;
        Schedule schedule = generate(info.name, options);
        EXPECT_EQ(schedule.rank_of, rank_of);
        EXPECT_EQ(verify(schedule), std::nullopt) << info.name;
        schedule.skip_edges = rank_of.size() > 2 ? std::vector<std::pair<int, int>>{{0, 2}} : schedule.skip_edges;
        const Schedule tied = schedule.forward_only ? schedule : add_tied_reductions(schedule, {{0, 1}});
        EXPECT_EQ(verify(add_send_recv(tied)), std::nullopt) << info.name;
      }
    }
  }
}

TEST(Schedules, TheirOwnPlacementMayBeSaid) {
  GenerateOptions options;
  options.stages = 2;
  options.microbatches = 4;
  options.rank_of = {0, 1, 1, 0};
  EXPECT_EQ(generate("zb_v", options), make("zb_v", 2, 4, 2));
  options.rank_of = {0, 1};
  EXPECT_EQ(generate("1f1b", options), make("1f1b", 2, 4));
  options.rank_of = {0, 1, 0, 1};
  EXPECT_EQ(generate("interleaved_1f1b", options), make("interleaved_1f1b", 2, 4, 2));
  EXPECT_EQ(generate("forward_only", options), make("forward_only", 2, 4, 2));
  options.rank_of = {0, 1, 0};
  EXPECT_THROW(generate("1f1b", options), InvalidArgument);
  options.rank_of = {0, 2};
  EXPECT_THROW(generate("gpipe", options), InvalidArgument);
}

TEST(Schedules, AreWhatTheirEntrySays) {
  for (const ScheduleInfo& info : schedule_names()) {
    const std::string name(info.name);
    if (name == "auto") continue;
    EXPECT_EQ(&schedule_info(name), &schedule_info(info.name));
    const int v = info.usual_virtual_stages;
    const Schedule schedule = make(name, 3, 8, v);
    bool has_weight = false;
    for (const auto& row : schedule.rows) {
      for (const Action& action : row) has_weight = has_weight || action.kind == ActionKind::kBackwardWeight;
    }
    EXPECT_EQ(has_weight, info.is_split) << name;
    if (info.placement) {
      EXPECT_EQ(schedule.rank_of, place(*info.placement, 3, v)) << name;
    }
    if (info.virtual_stages > 0) {
      EXPECT_EQ(info.virtual_stages, v) << name;
      EXPECT_THROW(make(name, 3, 8, v + 1), InvalidArgument) << name;
      EXPECT_NO_THROW(make(std::string(info.others), 3, 8, 3 - v)) << name;
    } else {
      EXPECT_NO_THROW(make(name, 3, 8, v + 1)) << name;
    }
  }
  EXPECT_THROW(schedule_info("2f2b"), InvalidArgument);
}

TEST(Formats, BlankLinesQuotesAndEmptyRanks) {
  EXPECT_EQ(from_csv("0F0,0B0\n\n \r\n").ranks(), 1);
  EXPECT_EQ(from_csv("\"0F0\",\"0B0\"\r\n\"1F0\",\"1B0\"\r\n").rows[1].size(), 2U);
  Schedule schedule = make("1f1b", 2, 2);
  schedule.rows.emplace_back();
  EXPECT_EQ(from_csv(to_csv(schedule)).rows, schedule.rows);
  EXPECT_THROW(from_csv("\n\n"), InvalidArgument);
}

TEST(Formats, JsonAsOthersWriteIt) {
  const auto named = [](const std::string& name, const std::string& count = "1") {
    return from_json("{\"name\": \"" + name + "\", \"microbatches\": " + count +
                     ", \"rank_of\": [0], \"rows\": [[\"0F0\"]], \"forward_only\": true}");
  };
  EXPECT_EQ(named("\\ud83d\\ude00").name, "\xF0\x9F\x98\x80");
  EXPECT_EQ(named("\\ud83dx").name, "\xEF\xBF\xBDx");
  EXPECT_EQ(named("\\ud83d\\u0041").name,
            "\xEF\xBF\xBD"
            "A");
  for (const char* count : {"01", "00", "010", "-01"}) EXPECT_THROW(named("a", count), InvalidArgument) << count;
  EXPECT_EQ(named("a", "10").microbatches, 10);
}

TEST(Formats, SkipEdgesStandOnce) {
  Schedule schedule = make("1f1b", 4, 2);
  schedule.skip_edges = {{0, 2}, {1, 3}, {0, 2}};
  EXPECT_THROW(verify(schedule), InvalidArgument);
}

TEST(Messages, AreTextAndKeepSmallNumbers) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  // A character of two bytes across the place where the text is cut, and bytes that are none.
  std::string text = "x";
  for (int i = 0; i < 40; ++i) text += "\xC3\xA9";
  const std::string cut = message([&] { from_csv(text); });
  EXPECT_NE(cut.find(text.substr(0, 59) + "' is not an action"), std::string::npos) << cut;
  EXPECT_NE(message([&] { make("\xFF\xC3", 1, 1); })
                .find("'?"
                      "?'"),
            std::string::npos);
  GenerateOptions options;
  options.costs = uniform_costs(1, -1e-9);
  EXPECT_NE(message([&] { generate("1f1b", options); }).find("forward[0] = -1e-09"), std::string::npos);
}

TEST(Lowering, UnshardTakesNoQuadraticTime) {
  const Schedule schedule = make("interleaved_1f1b", 1, 2, 20'000);
  const Schedule lowered = add_unshard_reshard(schedule, 20'000);
  EXPECT_EQ(lowered.rows[0].size(), schedule.rows[0].size() + 2 * 20'000);
  EXPECT_FALSE(verify(lowered));
}

TEST(Simulate, SpanIsThatOfWhatTakesTime) {
  const Schedule schedule = make("zb_2p", 4, 16);
  const Schedule lowered = add_send_recv(add_reduce_grad(add_unshard_reshard(schedule)));
  EXPECT_EQ(simulate(schedule, uniform_costs(4)).span, 48);
  EXPECT_EQ(simulate(lowered, uniform_costs(4)).span, 48);
  Costs costs = uniform_costs(4);
  costs.unshard = 0.5;
  EXPECT_GT(simulate(lowered, costs).span, 48);
}

TEST(Verify, WrongOptionsAreNamed) {
  const Schedule schedule = make("1f1b", 2, 2);
  VerifyOptions options;
  options.buffers = 0;
  EXPECT_THROW(verify(schedule, options), InvalidArgument);
  options = {};
  options.transports.clear();
  EXPECT_THROW(verify(schedule, options), InvalidArgument);
  EXPECT_THROW(verify(Schedule{}), InvalidArgument);
  EXPECT_THROW(make("1f1b", 0, 1), InvalidArgument);
  EXPECT_THROW(make("1f1b", 2, 1, 2), InvalidArgument);
  EXPECT_THROW(make("dualpipe_v", 4, 7, 2), InvalidArgument);
  EXPECT_THROW(make("1f2b", 2, 1), InvalidArgument);
}

}  // namespace
}  // namespace smdp::pipeline
