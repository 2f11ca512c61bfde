#include "truncation.h"

#include <math.h>
#include <string.h>

#include "kernels.h"

/* A look at this many weights tells roughly where a cut falls; so few are simply sorted. */
#define LOOK 32

/* Sort x [n] from the largest down. */
static void sort_down(double* x, int n) {
    for (int i = 1; i < n; i++) {
        double moving = x[i];
        int at = i;
        for (; at > 0 && x[at - 1] < moving; at--) x[at] = x[at - 1];
        x[at] = moving;
    }
}

/* What a token of this weight counts for: 1, or its weight rounded to the grid (sd_kernels.split). */
static double value(double weight, double grid) { return grid > 0.0 ? (weight + grid) - grid : 1.0; }

/* Where the row is cut: the last weight to keep, how many tokens have it, the value of those above. */
typedef struct cut {
    double weight;
    int n_equal;
    double above;
} cut;

/* The cut that reaches `goal`, among n candidates in order of weight; weight 0 if they do not. */
static cut cut_sorted(const double* sorted, int n, double above, double goal, double grid) {
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end] == sorted[i];) end++;
        double here = (end - i) * value(sorted[i], grid);
        if (above + here >= goal) return (cut){sorted[i], end - i, above};
        above += here;
    }
    return (cut){0.0, 0, above};
}

/* The cut that reaches `goal`. It is looked for among candidates: at first all weights, then those
 * between two bounds that a sorted look at 32 of them suggests, which one pass counts and copies.
 * A pass leaves a fifth of them or so. Sums of values are exact, so the way does not matter. */
static cut find_cut(int n, const double* weights, double mass, double goal, double grid, double* scratch) {
    const sd_kernels* k = sd_kernels_get();
    const double* candidates = weights;
    double *inside = scratch, *other = scratch + n;
    double look[LOOK], sums[2];
    double above = 0.0;                    /* value of the tokens above all candidates */
    double within = grid > 0.0 ? mass : n; /* value of the candidates; roughly will do */
    int margin = 3;
    while (n > LOOK) {
        double looked = 0.0, reached = 0.0;
        for (int i = 0; i < LOOK; i++) {
            look[i] = candidates[(long)n * i / LOOK];
            looked += value(look[i], grid);
        }
        sort_down(look, LOOK);
        int at = 0; /* the cut, were these all */
        while (at < LOOK - 1 && (reached += value(look[at], grid)) * within < (goal - above) * looked) at++;
        int upper = at - margin, lower = at + margin;
        double high = upper >= 0 ? nextafter(look[upper], INFINITY) : INFINITY;
        double low = lower < LOOK ? look[lower] : 0.0;
        int n_inside = k->split(n, candidates, low, high, grid, inside, sums);
        if (above + sums[0] >= goal) { /* further up than it seemed */
            n_inside = k->split(n, candidates, high, INFINITY, grid, inside, sums);
            within = sums[1];
        } else if (above + sums[1] >= goal) {
            above += sums[0];
            within = sums[1] - sums[0];
            if (upper >= 0 && lower < LOOK && look[upper] == low) return (cut){low, n_inside, above};
        } else { /* further down */
            above += sums[1];
            within -= sums[1];
            n_inside = k->split(n, candidates, 0.0, low, grid, inside, sums);
        }
        margin = n_inside < n ? 3 : 0; /* few different weights: then one of them at a time */
        n = n_inside;
        candidates = inside;
        inside = other;
        other = (double*)candidates;
    }
    memcpy(look, candidates, (size_t)n * sizeof *look);
    sort_down(look, n);
    return cut_sorted(look, n, above, goal, grid);
}

/* Zero all but the fewest of the largest weights, ties to the lowest id, whose values reach `goal`;
 * if all together do not, keep all. Returns the mass kept. scratch [2 · n]. */
static double keep_largest(int n, double* weights, double mass, double goal, double grid, double* scratch) {
    cut at = find_cut(n, weights, mass, goal, grid, scratch);
    if (at.n_equal > 0) { /* of equal weights as many as it takes, lowest ids first */
        double each = value(at.weight, grid);
        int wanted = (int)((goal - at.above) / each);
        while (wanted > 1 && at.above + (wanted - 1) * each >= goal) wanted--;
        while (wanted < at.n_equal && at.above + wanted * each < goal) wanted++;
        for (int i = n - 1, surplus = at.n_equal - wanted; surplus > 0; i--)
            if (weights[i] == at.weight) weights[i] = 0.0, surplus--;
    }
    return sd_kernels_get()->cut(n, weights, at.weight);
}

double sd_truncate(const sd_sampling* s, int n, double* weights, double mass, int32_t best, double* scratch) {
    if (s->top_k > 0 && s->top_k < n) mass = keep_largest(n, weights, mass, s->top_k, 0.0, scratch);
    if (s->top_p < 1.0) {
        /* At twice the mass or more, rounded up to a power of two, doubles lie so far apart that
         * sums of their multiples up to the mass need no rounding. */
        int exponent;
        frexp(mass, &exponent);
        mass = keep_largest(n, weights, mass, s->top_p * mass, ldexp(1.0, exponent + 1), scratch);
    }
    if (s->min_p > 0.0) mass = sd_kernels_get()->cut(n, weights, s->min_p * weights[best]);
    return mass;
}
