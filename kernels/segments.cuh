// Scans that restart where a head flag says so.
#pragma once

#include "compensated.cuh"

namespace coop {

// An element, and whether a segment begins with it.
template <typename T> struct Flagged {
  T value;
  bool begins;
};

// Elements and their head flags, read as one array.
template <typename T> struct FlaggedPointer {
  const T* values;
  const bool* heads;

  __device__ FlaggedPointer operator+(i64 n) const { return {values + n, heads + n}; }
  __device__ Flagged<T> operator[](i64 i) const { return {values[i], heads[i]}; }
};

// What is behind the last restart, and whether there was one. This does not commute.
template <typename M> struct Segmented {
  struct State {
    typename M::State value;
    int restarts;
  };
  __device__ static State identity() { return {M::identity(), 0}; }
  template <typename T> __device__ static State lift(Flagged<T> x) { return {M::lift(x.value), x.begins}; }
  __device__ static State combine(State a, State b) {
    return {b.restarts ? b.value : M::combine(a.value, b.value), a.restarts | b.restarts};
  }
};

// Takes an element whose own state is `own` along, and returns the result there.
template <typename M, typename R, bool exclusive> struct Result {
  template <typename Own> __device__ static R of(typename Within<M>::Walk& walk, Own own) {
    R before = walk.template result<R>();
    walk.add(own);
    return exclusive ? before : walk.template result<R>();
  }
};
template <typename M, typename R, bool exclusive> struct Result<Segmented<M>, R, exclusive> {
  using State = typename Segmented<M>::State;
  __device__ static R of(typename Within<Segmented<M>>::Walk& walk, State own) {
    State before = walk.state();
    walk.add(own);
    if (!exclusive) return convert<R>(walk.state().value);
    return convert<R>(own.restarts ? M::identity() : before.value);
  }
};

}  // namespace coop
