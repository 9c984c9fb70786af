#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/formats/read.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

// Returns a cell without quotes. No action needs them, but some programs write them.
std::string_view unquoted(std::string_view cell) {
  return cell.size() >= 2 && cell.front() == '"' && cell.back() == '"' ? cell.substr(1, cell.size() - 2) : cell;
}

bool is_blank(std::string_view cell) {
  return std::all_of(cell.begin(), cell.end(), [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

// Empty lines at the end are not ranks; an idle last rank is written as a comma.
std::string_view without_blank_end(std::string_view text) {
  for (;;) {
    const std::size_t line = text.empty() ? 0 : text.rfind('\n', text.size() - 1) + 1;
    if (!is_blank(text.substr(line))) return text;
    if (line == 0) return {};
    text.remove_suffix(text.size() - line + 1);
  }
}

std::vector<std::vector<Action>> parse_rows(std::string_view text, PayloadTable& payloads) {
  text = without_blank_end(text);
  std::vector<std::vector<Action>> rows;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::vector<Action> row;
    for (std::size_t cell = 0; !line.empty(); ++cell) {
      const std::size_t comma = std::min(line.find(','), line.size());
      const std::string_view content = unquoted(line.substr(0, comma));
      line.remove_prefix(std::min(comma + 1, line.size()));
      if (is_blank(content)) continue;
      try {
        row.push_back(read_action(content, payloads));
      } catch (const InvalidArgument& error) {
        throw InvalidArgument("[smdp] CSV, line " + std::to_string(rows.size() + 1) + ", cell " +
                              std::to_string(cell + 1) + ": " + without_tag(error.what()));
      }
    }
    rows.push_back(std::move(row));
    if (rows.size() > static_cast<std::size_t>(kMaxRanks)) {
      refuse("CSV: lines", "more than " + std::to_string(kMaxRanks), "one per rank, at most that many");
    }
  }
  return rows;
}

// A stage is on the rank whose row names it first.
std::vector<int> placement_of(const std::vector<std::vector<Action>>& rows) {
  std::vector<int> rank_of;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    for (const Action& action : rows[rank]) {
      if (action.kind == ActionKind::kReduceNorm) continue;  // has no stage
      for_each_part(action, [&](const Action& part) {
        check_count("CSV: stage", part.stage, 0, kMaxStages - 1);
        const auto stage = static_cast<std::size_t>(part.stage);
        if (stage >= rank_of.size()) rank_of.resize(stage + 1, -1);
        if (rank_of[stage] < 0) rank_of[stage] = static_cast<int>(rank);
      });
    }
  }
  const auto missing = std::find(rank_of.begin(), rank_of.end(), -1);
  if (rank_of.empty() || missing != rank_of.end()) {
    throw InvalidArgument("[smdp] CSV: stage " + std::to_string(missing - rank_of.begin()) +
                          " is in no line; every stage from 0 to the highest must occur.");
  }
  return rank_of;
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& row : schedule.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + to_text(schedule, row[i]);
    text += row.empty() ? ",\n" : "\n";
  }
  return text;
}

Schedule from_csv(std::string_view text, int microbatches) {
  Schedule schedule;
  schedule.name = "csv";
  PayloadTable payloads(schedule);
  schedule.rows = parse_rows(text, payloads);
  schedule.rank_of = placement_of(schedule.rows);
  schedule.forward_only = true;
  long highest = 0;
  std::map<int, std::vector<int>> tied;
  std::set<std::pair<int, int>> skip_edges;
  for (auto& row : schedule.rows) {
    for (Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        highest = std::max(highest, static_cast<long>(part.microbatch));
        if (is_compute(part.kind) && part.kind != ActionKind::kForward) schedule.forward_only = false;
      });
      if (action.kind == ActionKind::kReduceTied) tied[action.other_stage].push_back(action.stage);
      const std::pair edge{std::min(action.stage, action.other_stage), std::max(action.stage, action.other_stage)};
      if (is_transfer(action.kind) && edge.second - edge.first > 1 && edge.second < schedule.stages()) {
        skip_edges.insert(edge);
      }
    }
  }
  schedule.skip_edges.assign(skip_edges.begin(), skip_edges.end());
  // Groups are numbered from 0; a gap would be a group without members.
  for (auto& [group, stages] : tied) {
    if (group != static_cast<int>(schedule.tied.size())) {
      throw InvalidArgument("[smdp] CSV: there is a REDUCE_TIED of group " + std::to_string(group) + " but none of " +
                            std::to_string(schedule.tied.size()) + "; groups are numbered from 0.");
    }
    schedule.tied.push_back(std::move(stages));
  }
  schedule.microbatches = microbatches > 0 ? microbatches : static_cast<int>(std::min(highest, long{kMaxCells})) + 1;
  check_shape(schedule);
  set_peers(schedule);
  return schedule;
}

}  // namespace smdp::pipeline
