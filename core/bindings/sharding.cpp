#include "smdp/sharding.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bind.h"
#include "released.h"

namespace nb = nanobind;

namespace smdp {

using namespace sharding;

namespace {

std::vector<Parameter> parameters_of(nb::handle parameters) {
  return objects_of<Parameter>("parameters", parameters, "a ShardedParameter, as returned by parameter()");
}

const Layout& layout_of(const char* name, nb::handle layout) {
  return object_of<Layout>(name, layout, "a ShardingLayout, as returned by layout()");
}

std::vector<Move> reshard_unlocked(nb::handle parameters, nb::handle source, nb::handle target) {
  const std::vector<Parameter> all = parameters_of(parameters);
  const Layout& from = layout_of("source", source);
  const Layout& to = layout_of("target", target);
  const Released unlocked;
  return reshard(all, from, to);
}

}  // namespace

void bind_sharding(nb::module_& m) {
  nb::class_<Parameter>(m, "ShardedParameter",
                        "A tensor viewed as [outer, length, inner]; smdp/sharding.h explains its fields.")
      .def(
          "__init__",
          [](Parameter* self, std::int64_t outer, std::int64_t length, std::int64_t inner, std::int64_t element_size,
             bool is_split) { new (self) Parameter{outer, length, inner, element_size, is_split}; },
          nb::kw_only(), nb::arg("outer") = 1, nb::arg("length"), nb::arg("inner") = 1, nb::arg("element_size") = 4,
          nb::arg("is_split") = false)
      .def_ro("outer", &Parameter::outer)
      .def_ro("length", &Parameter::length)
      .def_ro("inner", &Parameter::inner)
      .def_ro("element_size", &Parameter::element_size)
      .def_ro("is_split", &Parameter::is_split);
  nb::class_<Piece>(m, "Piece", "Bytes [begin, end) of a parameter, and their offset in the owner's shard.")
      .def_ro("parameter", &Piece::parameter)
      .def_ro("begin", &Piece::begin)
      .def_ro("end", &Piece::end)
      .def_ro("offset", &Piece::offset);
  nb::class_<Owner>(m, "Owner", "A piece of a parameter, and the rank that owns it.")
      .def_ro("rank", &Owner::rank)
      .def_ro("piece", &Owner::piece);
  nb::class_<Move>(m, "Move", "Rows of bytes that move from one rank's shard to another's, or stay.")
      .def_ro("source", &Move::source)
      .def_ro("source_offset", &Move::source_offset)
      .def_ro("source_stride", &Move::source_stride)
      .def_ro("target", &Move::target)
      .def_ro("target_offset", &Move::target_offset)
      .def_ro("target_stride", &Move::target_stride)
      .def_ro("rows", &Move::rows)
      .def_ro("bytes", &Move::bytes);
  nb::class_<ParameterShards>(m, "ParameterShards", "Equal shards of a list of parameters stored one after the other.")
      .def(
          "__init__",
          [](ParameterShards* self, nb::handle parameters, nb::handle ranks) {
            new (self) ParameterShards(parameters_of(parameters), integer_of("ranks", ranks));
          },
          nb::arg("parameters").none(), nb::arg("ranks").none(),
          nb::sig("def __init__(self, parameters: collections.abc.Sequence[ShardedParameter], ranks: int) -> None"))
      .def(
          "bytes",
          [](const ParameterShards& shards, nb::handle rank) { return shards.bytes(integer_of("rank", rank)); },
          nb::arg("rank").none(), nb::sig("def bytes(self, rank: int) -> int"))
      .def(
          "pieces",
          [](const ParameterShards& shards, nb::handle rank) { return shards.pieces(integer_of("rank", rank)); },
          nb::arg("rank").none(), nb::sig("def pieces(self, rank: int) -> list[Piece]"),
          "Returns the pieces that a rank owns, in the order of its shard.")
      .def(
          "owners",
          [](const ParameterShards& shards, nb::handle parameter) {
            return shards.owners(integer_of("parameter", parameter));
          },
          nb::arg("parameter").none(), nb::sig("def owners(self, parameter: int) -> list[Owner]"),
          "Returns the owners of a parameter's pieces, in the order of the parameter.");
  nb::class_<Layout>(m, "ShardingLayout", "How ranks share parameters; smdp/sharding.h explains its fields.")
      .def(
          "__init__",
          [](Layout* self, std::int64_t pipeline, std::int64_t tensor, std::int64_t data,
             std::vector<std::vector<std::int64_t>> stages, std::vector<std::int64_t> ranks) {
            new (self) Layout{pipeline, tensor, data, std::move(stages), std::move(ranks)};
          },
          nb::kw_only(), nb::arg("pipeline"), nb::arg("tensor"), nb::arg("data"), nb::arg("stages"),
          nb::arg("ranks") = std::vector<std::int64_t>{})
      .def_ro("pipeline", &Layout::pipeline)
      .def_ro("tensor", &Layout::tensor)
      .def_ro("data", &Layout::data)
      .def_ro("stages", &Layout::stages)
      .def_ro("ranks", &Layout::ranks);
  m.def(
      "holdings",
      [](nb::handle parameters, nb::handle layout, nb::handle rank) {
        return holdings(parameters_of(parameters), layout_of("layout", layout), integer_of("rank", rank));
      },
      nb::arg("parameters").none(), nb::arg("layout").none(), nb::arg("rank").none(),
      nb::sig("def holdings(parameters: collections.abc.Sequence[ShardedParameter], layout: ShardingLayout, rank: int) "
              "-> list[Piece]"),
      "Returns the pieces of whole parameters that a rank holds, in the order of its shard.");
  m.def(
      "shard_bytes",
      [](nb::handle parameters, nb::handle layout, nb::handle rank) {
        return shard_bytes(parameters_of(parameters), layout_of("layout", layout), integer_of("rank", rank));
      },
      nb::arg("parameters").none(), nb::arg("layout").none(), nb::arg("rank").none(),
      nb::sig("def shard_bytes(parameters: collections.abc.Sequence[ShardedParameter], layout: ShardingLayout, rank: "
              "int) -> int"));
  m.def("reshard", &reshard_unlocked, nb::arg("parameters").none(), nb::arg("source").none(), nb::arg("target").none(),
        nb::sig("def reshard(parameters: collections.abc.Sequence[ShardedParameter], source: ShardingLayout, target: "
                "ShardingLayout) -> list[Move]"),
        "Returns the moves that give the ranks of `target` what they need from those of `source`, each byte once.");
}

}  // namespace smdp
