// Converts arguments for which nanobind's own error would show only a signature. These errors name the argument, its
// value and the valid values.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smdp/error.h"

namespace smdp {

// Returns at most 60 characters of the repr. Some objects have none, such as integers of more than 4300 digits.
inline std::string shown(nanobind::handle value) {
  std::string text;
  try {
    text = nanobind::cast<std::string>(nanobind::object(nanobind::repr(value)[nanobind::slice(60)]));
  } catch (const nanobind::python_error&) {
    text = "a value that cannot be shown";
  }
  return text;
}

inline std::string refusal(const char* name, nanobind::handle value, const char* allowed) {
  return "[smdp] " + std::string(name) + " = " + shown(value) + " is not valid; allowed: " + allowed;
}

// Throws TypeError.
inline double number_of(const char* name, nanobind::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw nanobind::type_error(refusal(name, value, "a number").c_str());
  }
  return number;
}

// Throws TypeError, or InvalidArgument for an integer that does not fit 64 bits.
inline std::int64_t integer_of(const char* name, nanobind::handle value) {
  if (PyIndex_Check(value.ptr()) == 0) throw nanobind::type_error(refusal(name, value, "an integer").c_str());
  const nanobind::object index = nanobind::steal(PyNumber_Index(value.ptr()));
  const long long number = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw InvalidArgument(refusal(name, value, "an integer of 64 bits"));
  }
  return number;
}

// Throws TypeError, or InvalidArgument for an unpaired surrogate, which UTF-8 cannot encode.
inline std::string text_of(const char* name, nanobind::handle value) {
  if (PyUnicode_Check(value.ptr()) == 0) throw nanobind::type_error(refusal(name, value, "a str").c_str());
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text != nullptr) return std::string(text, static_cast<std::size_t>(size));
  PyErr_Clear();
  throw InvalidArgument(refusal(name, value, "a str that can be encoded as UTF-8"));
}

// Throws TypeError. `allowed` is the class with its article.
template <typename T>
const T& object_of(const std::string& name, nanobind::handle value, const char* allowed) {
  if (!nanobind::isinstance<T>(value)) throw nanobind::type_error(refusal(name.c_str(), value, allowed).c_str());
  return nanobind::cast<const T&>(value);
}

// Throws TypeError, also if `values` is not a sequence.
template <typename T>
std::vector<T> objects_of(const std::string& name, nanobind::handle values, const char* allowed) {
  if (PySequence_Check(values.ptr()) == 0) {
    throw nanobind::type_error(refusal(name.c_str(), values, "a list").c_str());
  }
  std::vector<T> objects;
  for (const nanobind::handle value : nanobind::iter(values)) {
    objects.push_back(object_of<T>(name + "[" + std::to_string(objects.size()) + "]", value, allowed));
  }
  return objects;
}

}  // namespace smdp
