"""`specdec.speculate` on a simulation: photons that scatter in a hot, clumpy cloud.

Each step of a photon has two slow stages, and the second needs what was drawn from the first:

f: the distribution of the scattering angle, over bins. The differential cross-section of Compton scattering
   by electrons in thermal motion is an integral over the electrons' momenta (Pozdnyakov, Sobol, Sunyaev,
   Sov. Sci. Rev. E 2 (1983), 189): for every bin a quadrature in three dimensions.
f_approx: the formula of Klein and Nishina, which is f for electrons at rest. Always at hand, a bit off.
g: the photon flies on in its new direction; where it interacts next is where the optical depth, integrated
   through the clumps, reaches a number drawn before.

Plain: f, draw the angle, g. Speculative: g on the angle guessed from Klein and Nishina, beside f. Both take
turns, on the same photons, and each is also timed alone; the share of accepted guesses must be the mean of
sum(min(p, q)) (Theorem 3.5). f and g run in processes: between NumPy calls of some ten microseconds threads
wait for Python's lock longer than that. *cores* says how many there were to compute on: twice the time of f
over that of two f at once. On a machine whose cores are busy it is nearer to 1, and nothing can be gained.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import specdec
from benchmarks.report import Report, Spread
from benchmarks.turns import Options

Array = NDArray[np.float64]
POOLS: dict[str, Callable[[int], Executor]] = {
    "processes": ProcessPoolExecutor,
    "threads": ThreadPoolExecutor,
}


class Photon(NamedTuple):
    """A photon about to scatter."""

    place: tuple[float, float, float]
    direction: tuple[float, float, float]
    energy: float
    """In units of the electron's rest energy, 511 keV."""
    azimuth: float
    """Of the scattering, drawn before: every azimuth is as likely."""
    depth: float
    """Optical depth until the next interaction, drawn before: exponential."""


class Cloud(NamedTuple):
    """Where the photons are, and how finely the two stages compute."""

    temperature: float = 0.05
    """kT of the electrons in units of their rest energy: 0.05 is 300 million kelvin."""
    n_angles: int = 96
    """Bins of the cosine of the scattering angle."""
    n_nodes: int = 24
    """Nodes of the quadrature over momenta in each of three directions."""
    n_clumps: int = 160
    n_samples: int = 16_000
    """Of the density on a photon's way."""


def cosines(cloud: Cloud) -> Array:
    """Middles of the bins, [n_angles]."""
    return (np.arange(cloud.n_angles) + 0.5) / cloud.n_angles * 2 - 1


def angles_of_hot_electrons(cloud: Cloud, photon: Photon) -> Array:
    """f: probability of each bin of the scattering angle, [n_angles]."""
    n = cloud.n_nodes
    # The momenta of Maxwell and Juttner; the photon flies along z.
    momentum = (np.arange(n) + 0.5) / n * 8 * np.sqrt(cloud.temperature)
    gamma = np.sqrt(1 + momentum**2)
    along, weights = np.polynomial.legendre.leggauss(n)
    around = (np.arange(n) + 0.5) / n * np.pi  # the other half is its mirror image
    gamma, along, around = (
        gamma[:, None, None],
        along[None, :, None],
        around[None, None, :],
    )
    weight = (momentum**2 * np.exp((1 - gamma[:, 0, 0]) / cloud.temperature))[:, None, None]
    weight = weight * weights[None, :, None]
    speed = np.sqrt(1 - 1 / gamma**2)
    before = 1 - speed * along
    across = np.sqrt(1 - along**2) * np.cos(around)
    rates = np.empty(cloud.n_angles)
    for i, cosine in enumerate(cosines(cloud)):
        after = 1 - speed * (along * cosine + across * np.sqrt(1 - cosine**2))
        kept = before / (after + photon.energy / gamma * (1 - cosine))  # E' / E
        rho, rho_after = gamma * photon.energy * before, gamma * photon.energy * kept * after
        change = 1 / rho - 1 / rho_after
        x = rho / rho_after + rho_after / rho + 2 * change + change**2
        rates[i] = np.sum(weight * x * kept**2 / (gamma**2 * before))
    return rates / rates.sum()


def angles_of_electrons_at_rest(cloud: Cloud, photon: Photon) -> Array:
    """f_approx: Klein and Nishina, [n_angles]."""
    cosine = cosines(cloud)
    kept = 1 / (1 + photon.energy * (1 - cosine))
    rates = kept**2 * (kept + 1 / kept - (1 - cosine**2))
    return rates / rates.sum()


def fly(cloud: Cloud, photon: Photon, angle: int) -> tuple[tuple[float, float, float], Array, float]:
    """g: the place of the next interaction, the direction and the energy, after scattering into a bin."""
    cosine = cosines(cloud)[angle]
    energy = photon.energy / (1 + photon.energy * (1 - cosine))
    z = np.array(photon.direction)
    x = np.cross(z, [1.0, 0.0, 0.0] if abs(z[0]) < 0.9 else [0.0, 1.0, 0.0])
    x /= np.linalg.norm(x)
    sine = np.sqrt(1 - cosine**2)
    direction = cosine * z + sine * (np.cos(photon.azimuth) * x + np.sin(photon.azimuth) * np.cross(z, x))
    rng = np.random.default_rng(0)  # the cloud is always the same
    middles = rng.normal(0, 1, (cloud.n_clumps, 3))
    widths, masses = rng.uniform(0.05, 0.3, cloud.n_clumps), rng.uniform(5, 20, cloud.n_clumps)
    way = np.linspace(0, 4, cloud.n_samples)
    density = np.full(cloud.n_samples, 0.05)
    for middle, width, mass in zip(middles, widths, masses, strict=True):
        offset = np.array(photon.place) - middle
        squared = way**2 + 2 * way * (direction @ offset) + offset @ offset
        density += mass * np.exp(-0.5 * squared / width**2)
    depth = np.cumsum(density) * (way[1] - way[0])
    reached = way[min(int(np.searchsorted(depth, photon.depth)), cloud.n_samples - 1)]
    place = tuple(np.array(photon.place) + reached * direction)
    return place, direction, float(energy)


def plain(cloud: Cloud, photon: Photon, rng: np.random.Generator) -> None:
    """One stage after the other."""
    p = angles_of_hot_electrons(cloud, photon)
    fly(cloud, photon, int(rng.choice(len(p), p=p)))


def random_photon(rng: np.random.Generator) -> Photon:
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    return Photon(
        tuple(rng.normal(0, 1, 3)),
        tuple(direction),
        float(rng.uniform(0.05, 1.0)),
        float(rng.uniform(0, 2 * np.pi)),
        float(rng.exponential()),
    )


def seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def measure(cloud: Cloud, n_guesses: int, n_photons: int, pool: Executor) -> dict[str, Any]:
    """Take turns on the same photons; seconds and their ratios by step, and what the rule did."""
    rng = np.random.default_rng(1)
    times: dict[str, list[float]] = {"f": [], "g": [], "plain": [], "speculative": [], "two f": []}
    betas, accepted, n_g_calls, ratios, cores = [], 0, 0, [], []
    for turn in range(n_photons + 2):
        photon = random_photon(rng)
        p, q = angles_of_hot_electrons(cloud, photon), angles_of_electrons_at_rest(cloud, photon)
        angle = int(rng.choice(len(p), p=p))
        found: dict[str, specdec.Speculation] = {}

        def speculative(photon: Photon = photon, found: dict = found) -> None:
            found["out"] = specdec.speculate(
                partial(angles_of_hot_electrons, cloud),
                partial(angles_of_electrons_at_rest, cloud),
                partial(fly, cloud, photon),
                photon,
                n_guesses=n_guesses,
                seed=rng,
                executor=pool,
            )

        jobs = {
            "f": partial(angles_of_hot_electrons, cloud, photon),
            "g": partial(fly, cloud, photon, angle),
            "plain": partial(plain, cloud, photon, rng),
            "speculative": speculative,
            "two f": lambda photon=photon: list(pool.map(angles_of_hot_electrons, [cloud] * 2, [photon] * 2)),
        }
        order = list(jobs)[turn % len(jobs) :] + list(jobs)[: turn % len(jobs)]
        taken = {name: seconds(jobs[name]) for name in order}
        if turn < 2:  # warming up
            continue
        for name, value in taken.items():
            times[name].append(value)
        ratios.append(taken["plain"] / taken["speculative"])
        cores.append(2 * taken["f"] / taken["two f"])
        betas.append(float(np.minimum(p, q).sum()))
        accepted += found["out"].accepted is not None
        n_g_calls += found["out"].n_g_calls
    return {
        "times": times,
        "ratios": ratios,
        "beta": statistics.fmean(betas),
        "accepted": accepted / n_photons,
        "g calls": n_g_calls / n_photons,
        "cores": statistics.median(cores),
    }


def expected_gain(f_s: float, g_s: float, beta: float) -> float:
    """Plain over speculative: an accepted guess costs the longer of the two, a rejected one both."""
    return (f_s + g_s) / (max(f_s, g_s) + (1 - beta) * min(f_s, g_s))


def speculate_options(options: Options) -> None:
    options.many("--temperature", float, [0.01, 0.05, 0.2], help="kT of the electrons over their rest energy")
    options.many("--n-guesses", int, [1])
    options.add("--photons", type=int, default=60, help="steps of either kind")
    options.many("--pools", str, ["processes"], choices=POOLS)


def speculate(args: argparse.Namespace, report: Report) -> None:
    """`specdec.speculate` on a simulation: photons that scatter in a hot, clumpy cloud.

    Plain and speculative steps take turns on the same photons; f and g are also timed alone. The expected
    gain is that of an accepted guess, which costs the longer of the two, and a rejected one, which costs
    both. Medians of the steps; "all steps" is the ratio of the sums. photons.py says what is computed.
    """
    table = report.table(
        {
            "pool": "", "kT / mc2": "g", "guesses": "d", "f ms": ".1f", "g ms": ".1f", "f then g ms": ".1f",
            "speculate ms": ".1f", "beta": ".3f", "accepted": ".3f", "calls of g": ".2f", "cores": ".2f",
            "expected gain": ".2f", "measured, all steps": ".2f", "measured, a step": ".2f",
        }
    )  # fmt: skip
    for name, temperature, n_guesses in itertools.product(args.pools, args.temperature, args.n_guesses):
        with POOLS[name](n_guesses + 1) as pool:
            m = measure(Cloud(temperature=temperature), n_guesses, args.photons, pool)
        times = m["times"]
        mean = {job: statistics.fmean(values) for job, values in times.items()}
        table.row(
            name, temperature, n_guesses,
            *(1e3 * statistics.median(times[job]) for job in ("f", "g", "plain", "speculative")),
            m["beta"], m["accepted"], m["g calls"], m["cores"],
            expected_gain(mean["f"], mean["g"], m["accepted"]),
            mean["plain"] / mean["speculative"], Spread.of(m["ratios"]),
        )  # fmt: skip
