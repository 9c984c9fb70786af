// A schedule as JSON, which unlike CSV keeps everything:
//
//   {"format": "smdp.pipeline.schedule", "version": 1, "name": "1f1b", "microbatches": 8, "forward_only": false,
//    "rank_of": [0, 1], "skip_edges": [[0, 2]], "tied": [[0, 1]], "rows": [["0F0", ...], ...]}
//
// An action is written as in CSV, with its payload: 0SEND_F1:float32[8x16]. If the peer is not the rank of the
// transfer's other stage, it follows: 0SEND_F1@3.
#include <charconv>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/formats/json_cursor.h"
#include "pipeline/formats/quote.h"
#include "pipeline/formats/read.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

constexpr std::string_view kFormat = "smdp.pipeline.schedule";

template <typename Items, typename Write>
std::string array_of(const Items& items, Write&& write) {
  std::string text = "[";
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) text += ", ";
    is_first = false;
    text += write(item);
  }
  return text + "]";
}

std::string integers(const std::vector<int>& values) {
  return array_of(values, [](int value) { return std::to_string(value); });
}

std::vector<int> read_integers(JsonCursor& cursor, std::string_view what) {
  std::vector<int> values;
  cursor.open('[', what);
  while (cursor.next('[', what)) values.push_back(cursor.integer(what));
  return values;
}

Action read_cell(JsonCursor& cursor, PayloadTable& payloads, std::size_t rank, std::size_t index) {
  const std::string text = cursor.string("rows");
  const std::size_t mark = text.find('@');
  const auto place = [&] { return "[smdp] JSON, rows[" + std::to_string(rank) + "][" + std::to_string(index) + "]: "; };
  Action action;
  try {
    action = read_action(std::string_view(text).substr(0, mark), payloads);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(place() + without_tag(error.what()));
  }
  if (mark == std::string::npos) return action;
  const auto [end, error] = std::from_chars(text.data() + mark + 1, text.data() + text.size(), action.peer);
  if (error != std::errc() || end != text.data() + text.size() || action.peer < 0 || !is_transfer(action.kind)) {
    throw InvalidArgument(place() + "'" + shown(text) + "' has an @ without the peer rank of a transfer after it.");
  }
  return action;
}

void read_rows(JsonCursor& cursor, Schedule& schedule) {
  PayloadTable payloads(schedule);
  cursor.open('[', "rows");
  while (cursor.next('[', "rows")) {
    std::vector<Action> row;
    cursor.open('[', "rows");
    while (cursor.next('[', "rows")) row.push_back(read_cell(cursor, payloads, schedule.rows.size(), row.size()));
    schedule.rows.push_back(std::move(row));
  }
}

void read_field(JsonCursor& cursor, const std::string& name, Schedule& schedule) {
  if (name == "format") {
    const std::string format = cursor.string(name);
    if (format != kFormat) {
      refuse("JSON: format", "'" + shown(format) + "'", "'" + std::string(kFormat) + "'");
    }
  } else if (name == "version") {
    const int version = cursor.integer(name);
    if (version != 1) refuse("JSON: version", std::to_string(version), "1");
  } else if (name == "name") {
    schedule.name = cursor.string(name);
  } else if (name == "microbatches") {
    schedule.microbatches = cursor.integer(name);
  } else if (name == "forward_only") {
    schedule.forward_only = cursor.boolean(name);
  } else if (name == "rank_of") {
    schedule.rank_of = read_integers(cursor, name);
  } else if (name == "skip_edges") {
    cursor.open('[', name);
    while (cursor.next('[', name)) {
      const std::vector<int> edge = read_integers(cursor, name);
      if (edge.size() != 2) cursor.refuse(name, "pairs of a source and a target stage before this");
      schedule.skip_edges.emplace_back(edge[0], edge[1]);
    }
  } else if (name == "tied") {
    cursor.open('[', name);
    while (cursor.next('[', name)) schedule.tied.push_back(read_integers(cursor, name));
  } else if (name == "rows") {
    read_rows(cursor, schedule);
  } else {
    throw InvalidArgument("[smdp] JSON: there is no field '" + shown(name) +
                          "'; allowed: format, version, name, microbatches, forward_only, rank_of, skip_edges, tied, "
                          "rows.");
  }
}

}  // namespace

std::string to_json(const Schedule& schedule) {
  std::string text = "{\"format\": \"" + std::string(kFormat) + "\", \"version\": 1, \"name\": ";
  text += quote(schedule.name) + ", \"microbatches\": " + std::to_string(schedule.microbatches);
  text += std::string(", \"forward_only\": ") + (schedule.forward_only ? "true" : "false");
  text += ", \"rank_of\": " + integers(schedule.rank_of);
  text += ", \"skip_edges\": " + array_of(schedule.skip_edges, [](const std::pair<int, int>& edge) {
            return "[" + std::to_string(edge.first) + ", " + std::to_string(edge.second) + "]";
          });
  text += ", \"tied\": " + array_of(schedule.tied, integers);
  const auto action_text = [&](const Action& action) {
    std::string one = "\"" + to_text(schedule, action);
    if (is_transfer(action.kind)) {
      const bool is_known = action.other_stage >= 0 && action.other_stage < schedule.stages();
      const int usual = is_known ? schedule.rank_of[static_cast<std::size_t>(action.other_stage)] : -1;
      if (action.peer >= 0 && action.peer != usual) one += "@" + std::to_string(action.peer);
    }
    return one + "\"";
  };
  text += ", \"rows\": " +
          array_of(schedule.rows, [&](const std::vector<Action>& row) { return "\n  " + array_of(row, action_text); });
  return text + "}\n";
}

Schedule from_json(std::string_view text) {
  JsonCursor cursor(text);
  Schedule schedule;
  std::set<std::string> seen;
  cursor.open('{', "schedule");
  while (cursor.next('{', "schedule")) {
    const std::string name = cursor.key();
    if (!seen.insert(name).second) {
      throw InvalidArgument("[smdp] JSON: the field '" + shown(name) + "' occurs twice.");
    }
    read_field(cursor, name, schedule);
  }
  cursor.end("after the schedule");
  for (const char* needed : {"microbatches", "rank_of", "rows"}) {
    if (seen.contains(needed)) continue;
    throw InvalidArgument("[smdp] JSON: the field '" + std::string(needed) +
                          "' is missing; microbatches, rank_of and rows are required.");
  }
  check_shape(schedule);
  set_peers(schedule);
  return schedule;
}

}  // namespace smdp::pipeline
