"""Profile: what the data looks like, and how large a cache it wants."""

from hotrows.profile.measure import Profile as Profile
from hotrows.profile.measure import profile as profile
from hotrows.profile.plot import plot as plot
from hotrows.profile.show import show as show
from hotrows.profile.suggest import Suggestion as Suggestion
